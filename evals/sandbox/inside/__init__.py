"""Code that runs in the fork-server's process and in its children."""
