"""Plain data types and conversions, without I/O."""
