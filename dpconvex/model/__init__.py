"""What a user writes: records, templates, guarantees of privacy, and data in columns."""
