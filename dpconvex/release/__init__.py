"""From a promise to a released answer: verification, solving, budgets, and files."""
