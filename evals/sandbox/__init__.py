"""Runs strangers' Python programs in processes that the kernel confines."""
