"""Length: the attack that is made of nothing but more text, and what takes its reward away."""
