"""Settings of the property tests."""

from hypothesis import settings

# The run time of one example depends on the machine, not on the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
