"""Verification on Ray: what more workers gain and cost, and the effect of losing them."""
