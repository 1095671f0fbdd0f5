"""The command line, one command a file; heavy imports stay inside the commands."""
