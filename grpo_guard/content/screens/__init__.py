"""Deterministic screens: they look, without a model, for what honest text never contains."""
