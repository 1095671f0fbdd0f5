"""Guards and baselines by name, for the swarm suite."""
