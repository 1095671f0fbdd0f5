"""The bundled models, and others by name."""
