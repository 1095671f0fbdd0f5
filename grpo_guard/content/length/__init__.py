"""Length: the attack that only adds text, and what takes its reward away."""
