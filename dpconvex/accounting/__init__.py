"""What releases cost together: events, totals, and the rules of ledgers."""
