"""What releases cost together: events, and the rules that add them up."""
