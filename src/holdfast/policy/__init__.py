"""Pure decision functions, without I/O or a clock."""
