"""What nodes are asked, and what an answer earns."""
