"""From a guarantee to a released answer: verification, solving, budgets, and files."""
