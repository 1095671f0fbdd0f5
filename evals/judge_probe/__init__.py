"""Known attacks on judges, fired at anybody's own judge."""
