"""Sources of per-token statistics, one engine per file."""
