"""Studies of what a reader costs honest work and what it detects."""
