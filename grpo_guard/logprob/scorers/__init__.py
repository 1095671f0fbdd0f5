"""Where per-token statistics come from, one engine a file."""
