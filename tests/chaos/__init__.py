"""Chaos on real processes: they die while tasks of all kinds run; then a verdict. See `./dev chaos --help`."""
