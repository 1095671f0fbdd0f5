"""Find a span of text that a reference model finds foreign to the rest of it."""
