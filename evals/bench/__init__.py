"""Measuring what the checks cost, and the servers that takes."""
