"""How well seed replay tells honest completions from all others: ``make replay``."""
