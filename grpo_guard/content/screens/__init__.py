"""Deterministic screens: one pass, no model, looking for what honest text never contains."""
