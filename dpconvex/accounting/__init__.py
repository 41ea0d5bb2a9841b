"""What releases cost together: events, totals, and the rules of ledgers."""

import dpconvex.accounting.perturbation  # noqa: F401  (its event is to be readable wherever events are)
