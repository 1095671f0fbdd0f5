"""The command line: one module per command, with heavy imports inside the commands."""
