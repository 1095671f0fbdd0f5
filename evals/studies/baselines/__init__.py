"""Defences that only the tables of the results pages play; in a checkout ``--defence`` has them."""
