"""Code that runs in the fork-server's process and its children."""
