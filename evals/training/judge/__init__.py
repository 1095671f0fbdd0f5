"""The shipped judge: its training data, its training and its measurement."""
