"""Training of the bundled policies."""
