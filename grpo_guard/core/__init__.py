"""What a completion, a verdict and a verifier are, and how verifiers run and combine."""
