"""Verifiers that need no model: what can be seen in a completion's text alone."""
