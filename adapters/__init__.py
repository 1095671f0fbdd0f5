"""Trainer adapters: they translate data formats and contain no policy."""
