"""What a malicious node sends in place of honest work."""
