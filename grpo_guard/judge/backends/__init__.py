"""Where a judge's questions go: an HTTP server, an engine in this process, or transformers."""
