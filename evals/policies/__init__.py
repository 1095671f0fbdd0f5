"""The bundled policies, and other policies by name."""
