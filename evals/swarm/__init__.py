"""Training runs under attack: what nodes agree on, what they do, and the outcome."""
