"""From hidden states and the output head to per-token statistics, one implementation per file."""
