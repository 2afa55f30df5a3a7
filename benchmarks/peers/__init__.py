"""Peers: other libraries, each with its fastest known settings, and `raw`, which is handwritten SQL.

`raw` shows roughly what Python and the database can do at most.

Each peer has a virtual environment, created on demand (`environments.py`), and a script that runs in it (`scripts/`).
"""
