"""The tools of the MCP server: a choice of the operations of the REST API, and a tool for each task.

The operations check roles and scopes, and mask secrets, as they do for the REST API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from holdfast.app import Holdfast
from holdfast.control.audit import acting
from holdfast.task.signature import Signature
from holdfast.task.task import Task
from holdfast.telemetry import log
from holdfast.web.api import resources, runs
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.auth import Principal, SiteContext, authorize
from holdfast.web.responses import RequestError

OFFERED = (
    "list_runs", "search", "show_run", "why_run", "run_history", "run_steps", "run_logs", "preview_retry", "retry_run",
    "cancel_run", "pause_run", "resume_run", "list_gates", "show_gate", "complete_gate", "fail_gate", "list_tasks",
    "count_runs",
)  # fmt: skip
DESTRUCTIVE = ("cancel_run", "fail_gate")
OPERATIONS: dict[str, Operation] = {
    each.name: each for each in (*runs.OPERATIONS, *resources.OPERATIONS) if each.name in OFFERED
}
TASK_PREFIX = "task_"
MAX_TOOL_NAME_CHARS = 64
DEFAULT_WAIT_S = 20.0
MAX_WAIT_S = 300.0
_WAIT = {
    "type": "number", "minimum": 0, "maximum": MAX_WAIT_S, "default": DEFAULT_WAIT_S,
    "description": "How many seconds to wait for the run to end, with progress notifications.",
}  # fmt: skip
_KEY = {
    "type": "string",
    "description": "An idempotency key: another call with the same key and arguments returns the same run.",
}
WAIT_FOR_RUN = "wait_for_run"
WAIT_SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "format": "uuid"}, "_wait": _WAIT},
    "required": ["id"],
    "additionalProperties": False,
}
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class TaskTool:
    """A task as a tool."""

    name: str
    task: Task[..., Any]
    signature: Signature

    @property
    def description(self) -> str:
        """What the task does, by its docstring."""
        text = (getattr(self.signature.fn, "__doc__", None) or "").strip()
        what = f"{text}\n\n" if text else ""
        return f"{what}Enqueues a run of the task {self.task.name}. Returns its result, or the run to follow."

    @property
    def schema(self) -> dict[str, Any]:
        """The parameters of the task, and those of the call, which begin with an underscore."""
        schema = self.signature.json_schema()
        return {**schema, "properties": {**schema["properties"], "_wait": _WAIT, "_key": _KEY}}


def tasks_of(app: Holdfast, principal: Principal) -> dict[str, TaskTool]:
    """Return the tools of the tasks that a client may enqueue, by name."""
    if not principal.can_operate:
        return {}
    app.registry.load()
    found: dict[str, TaskTool] = {}
    for task in sorted(app.registry, key=lambda each: each.name):
        if isinstance(task.signature, Signature) and principal.scope.covers_lane(task.declaration.queue, task.name):
            name = _tool_name(task.name, found)
            found[name] = TaskTool(name, task, task.signature)
    return found


def _tool_name(task: str, taken: Iterable[str]) -> str:
    name = plain = (TASK_PREFIX + _NOT_IN_NAME.sub("_", task))[:MAX_TOOL_NAME_CHARS]
    number = 1
    while name in taken:
        number += 1
        name = f"{plain[: MAX_TOOL_NAME_CHARS - 4]}_{number}"
    return name


def operations_of(principal: Principal) -> list[Operation]:
    """Return the operations that a client may call."""
    return [OPERATIONS[name] for name in OFFERED if _may_call(principal, OPERATIONS[name])]


def _may_call(principal: Principal, operation: Operation) -> bool:
    try:
        authorize(principal, operation.permission, all_tenants=operation.all_tenants, all_tasks=operation.all_tasks)
    except RequestError:
        return False
    return True


def schema_of(operation: Operation) -> dict[str, Any]:
    """Return the JSON Schema of an operation's parameters: those of its path, its query and its body together."""
    path = _PATH_PARAMETER.findall(operation.path)
    properties: dict[str, Any] = {
        name: {"type": "string", "format": "uuid"} if name == "id" else {"type": "string"} for name in path
    }
    required, definitions = list(path), dict[str, Any]()
    for struct in (operation.query, *([] if operation.body is None else [operation.body])):
        (_,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
        own = components.pop(struct.__name__)
        properties |= own.get("properties", {})
        required += own.get("required", [])
        definitions |= components
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return schema | {"$defs": definitions} if definitions else schema


def perform(context: SiteContext, principal: Principal, operation: Operation, given: Mapping[str, Any]) -> Any:
    """Call an operation with its parameters by name. Blocks."""
    authorize(principal, operation.permission, all_tenants=operation.all_tenants, all_tasks=operation.all_tasks)
    names = _PATH_PARAMETER.findall(operation.path)
    if missing := [name for name in names if not isinstance(given.get(name), str)]:
        raise RequestError(422, f"{missing[0]} is missing or not a text", "invalid")
    rest = {name: value for name, value in given.items() if name not in names}
    query: Any = None
    body: Any = None
    if operation.body is not None:
        query, body = operation.query(), msgspec.convert(rest, operation.body)
    else:
        query = msgspec.convert(rest, operation.query, strict=False)
    path = {name: str(given[name]) for name in names}
    with acting(principal.by, "mcp", tenant=principal.tenant):
        result = operation.do(ApiRequest(context, principal, path, query, body))
    if operation.method == "POST":
        log.operator_action(f"{operation.name} mcp", principal.by)
    return result


def enqueue(context: SiteContext, principal: Principal, tool: TaskTool, given: Mapping[str, Any]) -> UUID:
    """Enqueue a run of a task with arguments by parameter name, and return its id. Blocks."""
    body = runs.EnqueueRequest(
        task=tool.task.name,
        args=[given[name] for name in tool.signature.positional_only if name in given],
        kwargs={name: value for name, value in given.items() if name not in tool.signature.positional_only},
    )
    if (key := given.get("_key")) is not None:
        body.key = msgspec.convert(key, str)
    body.kwargs.pop("_key", None)
    body.kwargs.pop("_wait", None)
    authorize(principal, "operate")
    operation = next(each for each in runs.OPERATIONS if each.name == "enqueue")
    created: runs.RunCreated = operation.do(ApiRequest(context, principal, {}, operation.query(), body))
    log.operator_action(f"enqueue {tool.task.name} mcp", principal.by)
    return created.id


def wait_seconds(given: Mapping[str, Any]) -> float:
    """Return how long a call waits for its run."""
    value = given.get("_wait", DEFAULT_WAIT_S)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_WAIT_S:
        raise RequestError(422, f"_wait must be a number of seconds from 0 to {MAX_WAIT_S:g}", "invalid")
    return float(value)
