"""The management commands of Holdfast."""
