"""Feature maps that learn nothing from the data: what becomes of a record depends on that record and on public choices alone."""
