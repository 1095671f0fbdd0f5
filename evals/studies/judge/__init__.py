"""The judge that ships: where its training data comes from, how it is trained and measured."""
