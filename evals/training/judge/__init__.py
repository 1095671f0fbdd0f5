"""The judge that ships: the source of its training data, its training and its measurement."""
