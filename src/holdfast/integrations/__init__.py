"""Holdfast beside other libraries, a module for each. Nothing here is imported by the rest of Holdfast."""
