"""The version of this package, in a module that all others can import."""

__version__ = "0.3.0"
