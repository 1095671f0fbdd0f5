"""Benchmarks of scoring, and the page of the documentation that shows them."""
