"""Deterministic screens: what honest text never has, found in one pass and without a model."""
