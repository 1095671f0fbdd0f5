"""Verifiers that need no model: they look at a completion's text alone."""
