"""Verifiers that read each text alone, in several processes."""
