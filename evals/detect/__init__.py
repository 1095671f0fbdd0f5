"""Measures what each verifier rejects, of honest work and of each kind of poison."""
