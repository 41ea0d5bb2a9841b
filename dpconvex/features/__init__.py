"""Feature maps that learn nothing from the data: the features of a record depend on this record and on public options alone."""
