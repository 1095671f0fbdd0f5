"""The models that ship, and others by name."""
