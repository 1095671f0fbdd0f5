"""Verification on Ray: what more workers gain, what they cost, and what their loss does."""
