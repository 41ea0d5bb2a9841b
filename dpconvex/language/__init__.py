"""What a user writes: records, templates, promises of privacy, and data in columns."""
