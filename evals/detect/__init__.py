"""Measures how much honest work, and how much of each kind of poison, each verifier rejects."""
