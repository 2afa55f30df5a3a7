"""What exists: plain data, no I/O."""
