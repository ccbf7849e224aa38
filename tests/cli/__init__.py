"""The command line, run in this process or as one of its own."""
