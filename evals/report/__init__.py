"""Turns results.json into a page, a table, or a printed summary."""
