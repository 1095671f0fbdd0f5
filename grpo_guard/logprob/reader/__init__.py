"""How foreign a span of text is, in its place, to a language model of one's own."""
