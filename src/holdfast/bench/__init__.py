"""Measurements: jobs a second, how soon they start, whether a large table slows them down. Run by `./dev bench`.

A measure is one small module with a `Measure` in it, listed in `command.py`; the rest here is what measures share.
"""
