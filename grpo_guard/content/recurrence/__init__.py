"""Recurrence: what one node repeats across different prompts and the other nodes do not."""
