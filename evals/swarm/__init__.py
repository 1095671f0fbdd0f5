"""Training runs under attack: what nodes agree on, what they do, and what they end at."""
