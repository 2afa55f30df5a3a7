"""What should happen: pure functions, no I/O and no clock."""
