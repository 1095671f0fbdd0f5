"""The training of the bundled policies."""
