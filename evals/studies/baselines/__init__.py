"""Defences played only in the tables of the results pages; in a checkout ``--defence`` has them."""
