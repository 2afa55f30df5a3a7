"""The schema, as numbered migrations for both databases."""
