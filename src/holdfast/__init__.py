"""Durable execution for Python, in the database you already have.

Every public class, error and type is importable from here. What needs the store or the engine is imported at its first
use, so that `import holdfast` stays cheap.
"""

import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "Holdfast runs on Linux and macOS, and not on Windows: it needs POSIX signals and process groups. Use"
        " the Windows Subsystem for Linux (WSL 2) or a container"
    )

from holdfast.app import Holdfast
from holdfast.client.handle import Run
from holdfast.engine.middleware import Call, Middleware
from holdfast.errors import (
    AskRejected,
    AskTimeout,
    BadArguments,
    BadMessage,
    BadState,
    BatchFailed,
    BlockingCall,
    BudgetExceeded,
    ConfigError,
    CostExceedsLimit,
    DuplicateTask,
    EncryptionKeyMissing,
    EncryptionKeysUnavailable,
    ErrorInfo,
    ExecutorLost,
    Fatal,
    GateRejected,
    GraphError,
    HoldfastError,
    KeyConflict,
    LeaseLost,
    LimitNotTaken,
    MessageNotFound,
    MoveRefused,
    NotSerializable,
    PayloadAltered,
    PayloadError,
    PayloadUnreadable,
    ResourceMissing,
    ResultTimeout,
    RetryAfter,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunNotFound,
    RunStarted,
    SchemaAhead,
    SchemaBehind,
    StepFailed,
    StepTraceback,
    StoreError,
    StoreMoved,
    StoreReplaced,
    StoreUnavailable,
    TaskError,
    TenantMoved,
    TooLarge,
    UnknownTask,
    WaitTimeout,
)
from holdfast.model.batch import Batch
from holdfast.model.budget import BudgetInfo, BudgetStatus, BudgetTotal
from holdfast.model.clock import Clock, Duration
from holdfast.model.explanation import Reason
from holdfast.model.filters import RunsOptions, RunSort
from holdfast.model.history import HistoryEntry
from holdfast.model.keep import Keep
from holdfast.model.limit import CounterInfo, LimitInfo, PermitHolder
from holdfast.model.payloads import Codec, ContextCodec, PayloadContext, PayloadField
from holdfast.model.retry import Retry
from holdfast.model.run import Chunk, Page, Progress, RunEnd, RunInfo, RunState, StreamReset
from holdfast.model.run_logs import LogLevel, LogLine, LogPage, Logs
from holdfast.model.schedule import (
    LastRun,
    PollInfo,
    ScheduleChange,
    ScheduleDetails,
    ScheduleInfo,
    ScheduleKind,
    ScheduleSync,
)
from holdfast.model.search_results import FoundRun, SearchResults
from holdfast.model.secret import Secret
from holdfast.model.topics import FieldValue, Published, Topic, Topics
from holdfast.policy.schedule_timing import CatchUp
from holdfast.task.conditions import Condition, Node, Output, all_of, any_of, none_of
from holdfast.task.context import Context, current_context
from holdfast.task.graph import Graph, OnTimeout
from holdfast.task.hooks import HookTask, HookTasks
from holdfast.task.machine import After, Done, Machine, State
from holdfast.task.options import MachineSettings, RunIn, TaskDefaults, TaskSettings
from holdfast.task.resources import inject
from holdfast.task.schedule_registry import Overlap, ScheduleSettings
from holdfast.task.scope import idempotency_key, stop_requested
from holdfast.task.sync_context import SyncContext
from holdfast.task.task import Request, Task

if TYPE_CHECKING:
    from holdfast.client.budgets import Budgets
    from holdfast.client.events import Events
    from holdfast.client.graphs import Gate
    from holdfast.client.limits import Limits
    from holdfast.client.schedules import Schedules
    from holdfast.engine.worker import Worker
    from holdfast.model.gate_links import GateLinkInfo
    from holdfast.task.interaction import Ask, SyncAsk

__version__ = "0.1.0"

__all__ = [
    "After",
    "Ask",
    "AskRejected",
    "AskTimeout",
    "BadArguments",
    "BadMessage",
    "BadState",
    "Batch",
    "BatchFailed",
    "BlockingCall",
    "BudgetExceeded",
    "BudgetInfo",
    "BudgetStatus",
    "BudgetTotal",
    "Budgets",
    "Call",
    "CatchUp",
    "Chunk",
    "Clock",
    "Codec",
    "Condition",
    "ConfigError",
    "Context",
    "ContextCodec",
    "CostExceedsLimit",
    "CounterInfo",
    "Done",
    "DuplicateTask",
    "Duration",
    "EncryptionKeyMissing",
    "EncryptionKeysUnavailable",
    "ErrorInfo",
    "Events",
    "ExecutorLost",
    "Fatal",
    "FieldValue",
    "FoundRun",
    "Gate",
    "GateLinkInfo",
    "GateRejected",
    "Graph",
    "GraphError",
    "HistoryEntry",
    "Holdfast",
    "HoldfastError",
    "HookTask",
    "HookTasks",
    "Keep",
    "KeyConflict",
    "LastRun",
    "LeaseLost",
    "LimitInfo",
    "LimitNotTaken",
    "Limits",
    "LogLevel",
    "LogLine",
    "LogPage",
    "Logs",
    "Machine",
    "MachineSettings",
    "MessageNotFound",
    "Middleware",
    "MoveRefused",
    "Node",
    "NotSerializable",
    "OnTimeout",
    "Output",
    "Overlap",
    "Page",
    "PayloadAltered",
    "PayloadContext",
    "PayloadError",
    "PayloadField",
    "PayloadUnreadable",
    "PermitHolder",
    "PollInfo",
    "Progress",
    "Published",
    "Reason",
    "Request",
    "ResourceMissing",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Run",
    "RunCancelled",
    "RunEnd",
    "RunFailed",
    "RunFinished",
    "RunIn",
    "RunInfo",
    "RunNotFound",
    "RunSort",
    "RunStarted",
    "RunState",
    "RunsOptions",
    "ScheduleChange",
    "ScheduleDetails",
    "ScheduleInfo",
    "ScheduleKind",
    "ScheduleSettings",
    "ScheduleSync",
    "Schedules",
    "SchemaAhead",
    "SchemaBehind",
    "SearchResults",
    "Secret",
    "State",
    "StepFailed",
    "StepTraceback",
    "StoreError",
    "StoreMoved",
    "StoreReplaced",
    "StoreUnavailable",
    "StreamReset",
    "SyncAsk",
    "SyncContext",
    "Task",
    "TaskDefaults",
    "TaskError",
    "TaskSettings",
    "TenantMoved",
    "TooLarge",
    "Topic",
    "Topics",
    "UnknownTask",
    "WaitTimeout",
    "Worker",
    "all_of",
    "any_of",
    "current_context",
    "idempotency_key",
    "inject",
    "none_of",
    "stop_requested",
]


def __getattr__(name: str) -> Any:
    """Import a public class that is too expensive for `import holdfast`."""
    if name == "Gate":
        from holdfast.client.graphs import Gate

        return Gate
    if name == "GateLinkInfo":
        from holdfast.model.gate_links import GateLinkInfo

        return GateLinkInfo
    if name == "Schedules":
        from holdfast.client.schedules import Schedules

        return Schedules
    if name == "Limits":
        from holdfast.client.limits import Limits

        return Limits
    if name == "Budgets":
        from holdfast.client.budgets import Budgets

        return Budgets
    if name == "Events":
        from holdfast.client.events import Events

        return Events
    if name in ("Ask", "SyncAsk"):
        from holdfast.task import interaction

        return getattr(interaction, name)
    if name == "Worker":
        from holdfast.engine.worker import Worker

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
