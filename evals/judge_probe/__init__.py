"""Known attacks on judges, to be tried on any judge."""
