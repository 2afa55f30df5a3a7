"""Others who do the same work, measured beside us: libraries, each with its best known settings, and `raw`, SQL written
by hand that is about the limit of what Python and the database allow.

Each has an environment of its own, made on demand (`environments.py`), and a small script that runs in it (`scripts/`).
"""
