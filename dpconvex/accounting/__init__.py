"""Privacy accounting: events of releases, their total cost, and privacy budgets with their ledgers."""
