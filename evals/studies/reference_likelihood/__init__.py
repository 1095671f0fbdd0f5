"""What the reference-likelihood verifier finds and what it costs honest work; see `__main__`."""
