"""Defences against padding, the attack that only adds text to completions."""
