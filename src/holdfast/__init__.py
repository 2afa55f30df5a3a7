"""Durable execution for Python, in the database you already have."""

from holdfast.app import Holdfast
from holdfast.client.handle import Run
from holdfast.errors import (
    Fatal,
    HoldfastError,
    KeyConflict,
    ResultTimeout,
    RetryAfter,
    RunCancelled,
    RunFailed,
    StepFailed,
    WaitTimeout,
)
from holdfast.model.retry import Retry
from holdfast.model.run import RunInfo
from holdfast.model.secret import Secret as Secret
from holdfast.task.conditions import Condition as Condition
from holdfast.task.conditions import Node as Node
from holdfast.task.conditions import Output as Output
from holdfast.task.conditions import all_of, any_of, none_of
from holdfast.task.context import Context
from holdfast.task.graph import Graph
from holdfast.task.machine import After, Done, State
from holdfast.task.machine import Machine as Machine
from holdfast.task.scope import idempotency_key, stop_requested
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import Request, Task

__version__ = "0.1.0"

__all__ = [
    "After",
    "Context",
    "Done",
    "Fatal",
    "Graph",
    "Holdfast",
    "HoldfastError",
    "KeyConflict",
    "Request",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunInfo",
    "State",
    "StepFailed",
    "SyncContext",
    "Task",
    "WaitTimeout",
    "all_of",
    "any_of",
    "idempotency_key",
    "none_of",
    "stop_requested",
]
