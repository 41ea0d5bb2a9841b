"""Records, templates, guarantees of privacy, and data in columns, as users write them."""
