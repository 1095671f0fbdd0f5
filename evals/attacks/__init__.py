"""The completions that a malicious node sends in place of honest work."""
