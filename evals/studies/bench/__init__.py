"""Benchmark results as a page of the documentation."""
