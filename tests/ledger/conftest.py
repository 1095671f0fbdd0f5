"""Settings of the property tests."""

from hypothesis import settings

# How long one example takes says something of the machine, not of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
