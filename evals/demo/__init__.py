"""One swarm unharmed, one poisoned, one poisoned and guarded."""
