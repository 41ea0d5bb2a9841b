"""Records and tables: domains, schemas, columns, validation, batches and partitions."""
