"""Per-token statistics from hidden states and the output head, one implementation per file."""
