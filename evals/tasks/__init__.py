"""The tasks that nodes train on, and their rewards."""
