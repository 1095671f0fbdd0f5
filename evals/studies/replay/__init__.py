"""Study of how well seed replay distinguishes honest completions from others: ``make replay``."""
