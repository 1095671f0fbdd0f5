"""The making of the shipped policies, judge and start profile; not in the wheel."""
