"""What runs in the environments of the peers: `run.py`, and a module per peer that `run.py` loads by its name.

They can't import anything of Holdfast, which isn't installed there; what they share they are given by `run.py`.
"""
