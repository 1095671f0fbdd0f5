"""Run Python programs of strangers in processes that the kernel confines."""
