"""Tables for the results pages, made from the JSON files in ``docs/results``."""
