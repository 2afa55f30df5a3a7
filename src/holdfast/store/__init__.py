"""Durable logic and SQL: every change of runs, workers and history, on either database.

All methods block. Statements are set-based, and writes of workers are fenced. `store.py` is the table of contents.
"""

from holdfast.store.rows import AttemptEnd, Claim, NewRun, OwnedRun
from holdfast.store.store import Store

__all__ = ["AttemptEnd", "Claim", "NewRun", "OwnedRun", "Store"]
