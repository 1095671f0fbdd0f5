"""Study of how well seed replay tells honest completions from others: ``make replay``."""
