"""Arithmetic in a completion: every equation found, read with care, evaluated exactly."""
