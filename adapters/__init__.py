"""Trainer adapters: they translate shapes and hold no policy."""
