"""How the shipped policies, judge and start profile were made; not in the wheel."""
