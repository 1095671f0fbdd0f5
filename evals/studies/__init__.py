"""How published figures were made: (rows, verifier) to counts; not in the wheel."""
