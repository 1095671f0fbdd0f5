"""Per-token statistics from hidden states and the output head, with one implementation per file."""
