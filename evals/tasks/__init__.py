"""The tasks of the nodes, and their rewards."""
