"""Benchmarks of scoring, and the documentation page that shows them."""
