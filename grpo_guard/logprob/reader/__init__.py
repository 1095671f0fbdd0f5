"""Measure how foreign a span of text is to its context, using a language model of your own."""
