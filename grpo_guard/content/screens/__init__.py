"""Deterministic screens that look, without a model, for what honest text never contains."""
