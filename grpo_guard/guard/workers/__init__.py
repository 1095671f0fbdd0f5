"""Run verifiers that read each text on its own, in several processes."""
