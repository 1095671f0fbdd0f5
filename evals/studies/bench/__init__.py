"""The cost of scoring, and a page of the documentation about it."""
