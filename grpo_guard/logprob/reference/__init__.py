"""Find spans of a completion that a reference model considers foreign to the rest of the text."""
