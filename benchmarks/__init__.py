"""Measurements: how fast Holdfast is, what it costs, whether that lasts, and how others compare.

Run by `./dev bench`. A measure is one small module with a `Measure` in it, listed in
`options.py`; `peers` has the others; the rest here is what measures share.
"""
