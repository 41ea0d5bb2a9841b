"""Templates, guarantees of privacy, privacy units, and programs over a batch."""
