"""Verifiers that need no model: they only look at the text of completions."""
