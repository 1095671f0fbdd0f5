"""Atropos: groups of scored rollouts, guarded in the environment or on their way to the trainer."""
