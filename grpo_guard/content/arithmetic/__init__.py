"""Arithmetic in a completion: find every equation, parse it with care, evaluate it exactly."""
