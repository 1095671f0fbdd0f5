"""Find spans of a completion that a reference model finds foreign to the rest of the text."""
