"""How published figures were computed: (rows, verifier) to counts; not in the wheel."""
