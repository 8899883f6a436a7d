"""What records and results look like: provenance, tables, pages, progress."""
