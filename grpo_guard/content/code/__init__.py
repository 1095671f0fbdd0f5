"""Static checks of Python programs in completions: nothing is executed, imported or compiled."""
