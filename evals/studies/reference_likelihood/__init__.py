"""What the reference-likelihood verifier detects and what it costs honest work; see `__main__`."""
