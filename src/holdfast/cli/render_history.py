"""Render the history of a run for `show`, with the steps, children and waits of durable functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.cli.output import TreeNode, format_ago, format_duration, format_timestamp, is_interactive
from holdfast.control.history_text import describe_entry, entry_label
from holdfast.errors import error_text
from holdfast.model.history import Entry
from holdfast.model.names import counted
from holdfast.model.previews import arguments_line

if TYPE_CHECKING:
    from holdfast.control.runs import RunDetails
    from holdfast.control.steps import ChildInfo, StepInfo, UnfinishedStep, WaitInfo
    from holdfast.errors import ErrorInfo

MAX_ERROR_CHARS = 300
MAX_FAILURE_CHARS = 300
MAX_VALUE_CHARS = 400
MAX_LABEL_CHARS = 28
MAX_CHILDREN = 10
START_KINDS = ("enqueued", "forked", "started", "resumed")

Lines: TypeAlias = list[tuple[list[str], list[TreeNode]]]


def history_tree(details: RunDetails) -> list[TreeNode]:
    """Build the tree in order of time: steps below their attempt, children below their call, pending waits last."""
    renderer = StepRenderer(details)
    lines: Lines = []
    inherited: list[TreeNode] = []

    def last_line() -> list[TreeNode]:
        if not lines:  # Only the last entries are shown, or the clock of another process was behind.
            lines.append((["(earlier)"], []))
        return lines[-1][1]

    for item in _in_order(details):
        if isinstance(item, Entry) and item.kind == "step_retrying":
            last_line().append(renderer.failed_try(item))
        elif isinstance(item, Entry):
            lines.append((_entry_cells(item), _failure(item.data.get("error"))))
            if item.kind == "forked":
                lines[-1][1].extend(inherited)
        elif item.at < details.info.created_at:
            inherited.append(renderer.step(item))
        else:
            last_line().append(renderer.step(item))
    last_line().extend(TreeNode([f"waits for {awaited(wait)}"], whole=True) for wait in details.waits)
    lines.extend(renderer.orphans())
    return [TreeNode(cells, below) for cells, below in lines]


def _in_order(details: RunDetails) -> list[Entry | StepInfo]:
    def key(item: Entry | StepInfo) -> tuple[datetime, int]:
        if not isinstance(item, Entry) or item.kind == "step_retrying":
            return item.at, 1
        rank = 0 if item.kind in START_KINDS else 2
        return item.at, rank

    return sorted([*details.history, *details.steps], key=key)


# History


def _entry_cells(entry: Entry) -> list[str]:
    cells = [format_timestamp(entry.at), f"{entry_label(entry):<11}"]
    if entry.attempt:
        cells.append(f"attempt {entry.attempt}")
    cells.extend(describe_entry(entry, error=False))
    if entry.worker:
        cells.append(f"on {entry.worker}")
    return cells


def _failure(error: Any) -> list[TreeNode]:
    """Build the line with an error below its entry."""
    if isinstance(error, dict):
        error = error_text(str(error.get("type", "error")), str(error.get("message", "")))
    if error is None:
        return []
    return [TreeNode([cut(one_line(str(error)), MAX_FAILURE_CHARS)], whole=True)]


def _arguments(args: Any) -> list[TreeNode]:
    """Build the line with the arguments of a step that failed."""
    return [] if args is None else [TreeNode([f"called with {arguments_line(args, MAX_FAILURE_CHARS)}"], whole=True)]


# Steps


class StepRenderer:
    """Renders the steps of one run in columns."""

    def __init__(self, details: RunDetails) -> None:
        self._details = details
        tries = [entry.data for entry in details.history if entry.kind == "step_retrying" and "step" in entry.data]
        labels = [step.label for step in details.steps] + [str(data["step"]) for data in tries]
        took = [step.took for step in details.steps if step.took is not None] + [data["took"] for data in tries]
        self._width = min(max(map(len, labels), default=0), MAX_LABEL_CHARS)
        self._took = max((len(format_duration(each)) for each in took), default=0)
        self._shown_arguments: set[str] = set()
        self._children: dict[tuple[int, str], list[ChildInfo]] = {}
        for child in details.children:
            self._children.setdefault((child.generation, child.spawn), []).append(child)

    def step(self, step: StepInfo) -> TreeNode:
        took = "" if step.took is None else format_duration(step.took)
        mark = "undone" if step.undone_at else "has undo" if step.undo and step.kind != "undo" else ""
        if step.superseded and step.error is None and step.kind != "timeout":
            mark = f"{mark}, superseded" if step.undone_at else "superseded"
        cells = [
            _clock(step.at, self._details.info.created_at),
            f"{step.label:<{self._width}}",
            f"{took:>{self._took}}",
        ]
        cells += [cell for cell in (mark, *_outcome(step)) if cell]
        below = self._family(
            self._children.pop((step.generation, step.key), []), _count(step.value) if step.kind == "map" else 0
        )
        if step.kind in ("enqueue", "existing"):
            below = [TreeNode([str(step.value)])]
        if step.error is not None:
            below = [*_failure(step.error), *_arguments(step.args)]
        return TreeNode(cells, below)

    def failed_try(self, entry: Entry) -> TreeNode:
        """Render a failed try of a step that is tried again."""
        data, created = entry.data, self._details.info.created_at
        if "step" not in data:
            return TreeNode(_entry_cells(entry))
        following = _clock(datetime.fromisoformat(data["next_at"]), created)
        cells = [
            _clock(entry.at, created),
            f"{data['step']:<{self._width}}",
            f"{format_duration(data['took']):>{self._took}}",
            f"try {data['try']} of {data['tries']} failed, next try {following}",
        ]
        is_first = data["key"] not in self._shown_arguments
        self._shown_arguments.add(data["key"])
        return TreeNode(cells, [*_failure(data["error"]), *(_arguments(data["args"]) if is_first else ())])

    def orphans(self) -> Iterator[tuple[list[str], list[TreeNode]]]:
        """Render children whose calls have no checkpoint."""
        left = [child for some in self._children.values() for child in some]
        if left:
            yield ["children of calls without a checkpoint"], self._family(left, len(left), named=True)

    def _family(self, children: Sequence[ChildInfo], count: int, *, named: bool = False) -> list[TreeNode]:
        """Render some children, unfinished ones first if there are many, and the number of the rest."""
        if not children and not self._details.more_children:  # a fork has their results, not the children
            return []
        shown = list(children)
        if len(shown) > MAX_CHILDREN:
            shown = sorted(children, key=lambda child: child.state == "done")[:MAX_CHILDREN]
        lines = [TreeNode(_child(child, named=named), _failure(child.error)) for child in shown]
        left = max(count, len(children)) - len(shown)
        return [*lines, TreeNode([f"… and {left:,} more"])] if left > 0 else lines


def _clock(at: datetime, created: datetime) -> str:
    """Format the time of day, with the date if it differs from the run's."""
    text = format_timestamp(at)
    return text if at.astimezone(UTC).date() != created.astimezone(UTC).date() else text.partition(" ")[2]


def _outcome(step: StepInfo) -> list[str]:
    if step.error is not None:
        return ["failed"]
    return [_OUTCOMES.get(step.kind, plain)(step.value)]


def _count(value: Any) -> int:
    """Return the number of children of a map."""
    count = value.get("children") if isinstance(value, dict) else value
    return count if isinstance(count, int) else 0


def _joined(value: Any) -> str:
    return "" if value is None else f"child {value} failed"


def _nothing(_value: Any) -> str:
    return ""


def _spent(value: Any) -> str:
    """Say what a run or a step has spent of budgets."""
    found = value if isinstance(value, list) else []
    return ", ".join(f"{each['amount']} {each['budget']}, {each['spent']} of {each['limit']}" for each in found)


def _left(value: Any) -> str:
    found = value if isinstance(value, list) else []
    return ", ".join(f"{each['spent']} of {each['limit']} spent" for each in found)


_OUTCOMES: dict[str, Callable[[Any], str]] = {
    "slept": _nothing,
    "timeout": lambda _: "timed out",
    "withdrawn": lambda _: "cancelled by code",
    "spawn": _nothing,
    "map": lambda value: counted(_count(value), "child", "children"),
    "join": _joined,
    "joined": lambda _: "reused",
    "emit": lambda first: "" if first else "already emitted",
    "enqueue": _nothing,
    "existing": lambda _: "already existed",
    "now": lambda time: format_timestamp(time) if isinstance(time, datetime) else str(time),
    "uuid": str,
    "write": _nothing,
    "annotate": _nothing,
    "adjust": _nothing,
    "permit": lambda costs: ", ".join(f"cost {cost:,}" for cost in costs.values()) if isinstance(costs, dict) else "",
    "set": _nothing,
    "spend": _spent,
    "spent": _spent,
    "left": _left,
    "budget": lambda _: "has room",
    "exceeded": lambda found: (
        f"exceeded: {found['spent']} of {found['limit']} spent" if isinstance(found, dict) else ""
    ),
    "reply": _nothing,
    "refused": _nothing,
    "undo": _nothing,
    "undone": _nothing,
}


def _child(child: ChildInfo, *, named: bool) -> list[str]:
    until = child.finished_at or datetime.now(UTC)
    took = "" if child.started_at is None else format_duration(max((until - child.started_at).total_seconds(), 0))
    cells = [str(child.id), f"{child.state:<9}", child.task if named else "", took]
    return [cell for cell in cells if cell]


# Waits


def awaited(wait: WaitInfo) -> str:
    """Say what a run waits for, and until when."""
    if wait.outcome is not None:
        return f"{_what(wait)}, resolved: the run will resume"
    if wait.due_at is None:
        return f"{_what(wait)}, since {format_timestamp(wait.since)[:-4]} ({format_ago(wait.since)})"
    return f"{_what(wait)}, until {format_timestamp(wait.due_at)[:-4]} ({format_ago(wait.due_at)})"


def _what(wait: WaitInfo) -> str:
    if wait.kind == "sleep":
        return "sleep" + (f" {wait.name}" if wait.name else "")
    if wait.kind in ("message", "topic"):
        return f"a message on topic {wait.name}"
    if wait.kind == "ask":
        return "an ask" if wait.name is None else f"ask {wait.name}"
    if wait.kind == "children":
        return f"{wait.pending} children ({wait.name})" if wait.pending != 1 else f"child {wait.name}"
    if wait.kind == "limit":
        return f"limit {wait.name}"
    if wait.kind == "budget":
        return f"budget {wait.name}"
    return f"event {wait.name}" + ("" if wait.tenant is None else f" of tenant {wait.tenant}")


def retrying(step: UnfinishedStep) -> str:
    """Say which try of a step failed, and when the next one starts."""
    last = step.last
    following = f"next try {format_timestamp(last.next_at)[:-4]} ({format_ago(last.next_at)})"
    return f"{step.label}, try {last.number} of {last.of} failed, {following}: {short(last.error)}"


# Values


def plain(value: Any) -> str:
    """Format a value as JSON on one line; long values are truncated unless the terminal does it."""
    if isinstance(value, msgspec.Raw):
        return arguments_line(value, MAX_VALUE_CHARS)
    text = "" if value is None else json.dumps(value, ensure_ascii=False)
    return text if is_interactive() else cut(text, MAX_VALUE_CHARS)


def one_line(text: str) -> str:
    return " ".join(text.split())


def short(error: ErrorInfo) -> str:
    return cut(one_line(str(error)), MAX_ERROR_CHARS)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
