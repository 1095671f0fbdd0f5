"""Attackers that query the verifier itself: the best of N rewritings of a poisoned completion."""
