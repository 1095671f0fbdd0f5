"""What runs in the server's process and in its children; imported by nothing else."""
