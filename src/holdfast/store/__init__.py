"""What is durable: every change of runs, workers and history, on either database. Blocking, set-based, fenced."""

from holdfast.store.rows import Claim, End, NewRun, Owned
from holdfast.store.store import Store

__all__ = ["Claim", "End", "NewRun", "Owned", "Store"]
