"""Known attacks on judges, which can be tried on any judge."""
