"""Scripts that run in the peers' environments: `run.py`, and a module per peer that it imports by name.

Holdfast isn't installed there, so the scripts can't import it. `run.py` passes what they share.
"""
