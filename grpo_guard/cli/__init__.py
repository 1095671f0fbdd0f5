"""The command line: one file per command, with heavy imports inside the commands."""
