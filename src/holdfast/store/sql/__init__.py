"""The statements of the store, one file a subject, written once for both databases."""
