"""Programs: the command line and the demo."""
