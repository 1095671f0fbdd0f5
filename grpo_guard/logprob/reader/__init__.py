"""Measure how foreign a span of text is to its context, with a language model of your own."""
