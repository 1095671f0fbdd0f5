"""Code for the server's process and its children; imported by nothing else."""
