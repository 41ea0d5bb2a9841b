"""The command line, with the demo."""
