"""Backends for a judge's questions: an HTTP server, an engine in this process, or transformers."""
