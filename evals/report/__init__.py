"""From results.json to a page, a table, or a printed summary."""
