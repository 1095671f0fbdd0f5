"""How well seed replay distinguishes honest completions from all others: ``make replay``."""
