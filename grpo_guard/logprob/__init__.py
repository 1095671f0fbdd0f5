"""What the shared policy says of each token of a completion, and what follows from it."""
