"""Static checks for Python programs in completions; nothing is executed, imported or compiled."""
