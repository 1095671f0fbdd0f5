"""Guards and baselines by name, as the swarm suite runs them."""
