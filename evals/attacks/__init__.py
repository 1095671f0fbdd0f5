"""The completions that a malicious node sends instead of honest work."""
