"""Measuring what the checks cost, the servers that takes, and the page that is made of it."""
