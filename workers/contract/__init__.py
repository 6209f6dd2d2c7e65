"""What crosses process borders: schemas, names, layout, errors, settings."""
