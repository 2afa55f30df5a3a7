"""How `show` draws the story of a run: its history in the order of time, and below it what durable functions did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.cli.output import TreeNode, format_ago, format_duration, format_timestamp, is_interactive
from holdfast.model.history import Entry
from holdfast.model.step_keys import key_label

if TYPE_CHECKING:
    from holdfast.control.runs import ChildInfo, RunDetails, StepInfo, WaitInfo
    from holdfast.errors import ErrorInfo

LONGEST_ERROR = 80
LONGEST_FAILURE = 300
LONGEST_VALUE = 400
WIDEST_LABEL = 28
MOST_CHILDREN = 10
BEGIN = ("enqueued", "forked", "started", "resumed")

Lines: TypeAlias = list[tuple[list[str], list[TreeNode]]]


def history_tree(details: RunDetails) -> list[TreeNode]:
    """All that happened, in the order of time: steps hang below the attempt that made them, children below the call
    that made them, open waits at the end."""
    drawn = StepRenderer(details)
    lines: Lines = []
    inherited: list[TreeNode] = []
    for happened in _in_order(details):
        if isinstance(happened, Entry):
            lines.append((_told(happened), _failure(happened.data.get("error"))))
            if happened.kind == "forked":
                lines[-1][1].extend(inherited)
        elif happened.at < details.info.created_at:
            inherited.append(drawn.step(happened))
        else:
            lines[-1][1].append(drawn.step(happened))
    lines[-1][1].extend(TreeNode([f"waits for {awaited(wait)}"], whole=True) for wait in details.waits)
    lines.extend(drawn.orphans())
    return [TreeNode(cells, below) for cells, below in lines]


def _in_order(details: RunDetails) -> list[Entry | StepInfo]:
    def key(happened: Entry | StepInfo) -> tuple[datetime, int]:
        rank = 1 if not isinstance(happened, Entry) else 0 if happened.kind in BEGIN else 2
        return happened.at, rank

    return sorted([*details.history, *details.steps], key=key)


# History


def _told(entry: Entry) -> list[str]:
    """One entry of a history, in cells."""
    cells = [format_timestamp(entry.at), f"{entry.kind:<11}"]
    if entry.attempt:
        cells.append(f"attempt {entry.attempt}")
    cells.extend(_more(entry))
    if entry.worker:
        cells.append(f"on {entry.worker}")
    return cells


def _more(entry: Entry) -> Iterator[str]:
    """What some entries have to tell."""
    data = entry.data
    if data.get("reason"):
        yield str(data["reason"])
    if entry.kind == "waiting" and isinstance(data.get("waits_for"), list):
        yield "for " + ", ".join(key_label(str(key)) for key in data["waits_for"])
    elif entry.kind == "moved":
        yield f"from {data.get('from')} to {data.get('to')}"
    elif entry.kind == "forked":
        at = f" from {data['from_step']}" if data.get("from_step") else ""
        yield f"of {data.get('from')}{at}, {data.get('steps', 0)} taken over"
    elif entry.kind == "appended":
        yield f"{data.get('nodes')} nodes, key {data.get('key')}"
    elif entry.kind == "concluded_early":
        yield "will be complete" if data.get("outcome") == "done" else "will fail"
    elif entry.kind == "drift" and isinstance(data.get("steps"), dict):
        yield f"other arguments than on record: {', '.join(map(str, data['steps']))}"
    if data.get("by"):
        yield f"by {data['by']}"


def _failure(error: Any) -> list[TreeNode]:
    """What went wrong, below the line that it belongs to."""
    if isinstance(error, dict):
        error = f"{error.get('type', 'error')}: {error.get('message', '')}".removesuffix(": ")
    if error is None:
        return []
    return [TreeNode([cut(one_line(str(error)), LONGEST_FAILURE)], whole=True)]


# Steps


class StepRenderer:
    """Draws the steps of one run, in columns."""

    def __init__(self, details: RunDetails) -> None:
        self._details = details
        self._width = min(max((len(step.label) for step in details.steps), default=0), WIDEST_LABEL)
        self._took = max(
            (len(format_duration(step.took)) for step in details.steps if step.took is not None), default=0
        )
        self._children: dict[str, list[ChildInfo]] = {}
        self._older: list[ChildInfo] = []
        for child in details.children:
            if child.generation == details.restarts:
                self._children.setdefault(child.spawn, []).append(child)
            else:
                self._older.append(child)

    def step(self, step: StepInfo) -> TreeNode:
        took = "" if step.took is None else format_duration(step.took)
        mark = "undone" if step.undone_at else "has undo" if step.undo and step.kind != "undo" else ""
        cells = [
            _clock(step.at, self._details.info.created_at),
            f"{step.label:<{self._width}}",
            f"{took:>{self._took}}",
        ]
        cells += [cell for cell in (mark, *_outcome(step)) if cell]
        below = self._family(self._children.pop(step.key, []), _count(step.value) if step.kind == "map" else 0)
        if step.kind == "enqueue":
            below = [TreeNode([str(step.value)])]
        return TreeNode(cells, _failure(step.error) or below)

    def orphans(self) -> Iterator[tuple[list[str], list[TreeNode]]]:
        """Children whose calls aren't on record (any more)."""
        left = [*self._older, *(child for some in self._children.values() for child in some)]
        if left:
            yield ["children of calls that aren't on record any more"], self._family(left, len(left), named=True)

    def _family(self, children: Sequence[ChildInfo], count: int, *, named: bool = False) -> list[TreeNode]:
        """Some children, those that aren't done first when there are many; and how many more there are."""
        if not children and not self._details.more_children:  # a fork took over what came of them
            return []
        shown = list(children)
        if len(shown) > MOST_CHILDREN:
            shown = sorted(children, key=lambda child: child.state == "done")[:MOST_CHILDREN]
        lines = [TreeNode(_child(child, named=named), _failure(child.error)) for child in shown]
        left = max(count, len(children)) - len(shown)
        return [*lines, TreeNode([f"… and {left:,} more"])] if left > 0 else lines


def _clock(at: datetime, made: datetime) -> str:
    """The time of day; the date too where it is another than that of the run."""
    told = format_timestamp(at)
    return told if at.astimezone(UTC).date() != made.astimezone(UTC).date() else told.partition(" ")[2]


def _outcome(step: StepInfo) -> list[str]:
    if step.error is not None:
        return ["failed"]
    told = _OUTCOMES.get(step.kind, plain)
    return [told(step.value)]


def _count(value: Any) -> int:
    """How many children a map made."""
    count = value.get("children") if isinstance(value, dict) else value
    return count if isinstance(count, int) else 0


def _joined(value: Any) -> str:
    return "" if value is None else f"child {value} didn't end well"


def _nothing(_value: Any) -> str:
    return ""


_OUTCOMES: dict[str, Callable[[Any], str]] = {
    "slept": _nothing,
    "timeout": lambda _: "timed out",
    "withdrawn": lambda _: "cancelled by the code",
    "spawn": _nothing,
    "map": lambda value: f"{_count(value):,} children",
    "join": _joined,
    "joined": lambda _: "taken over",
    "emit": lambda first: "" if first else "it had been emitted before",
    "enqueue": _nothing,
    "now": lambda time: format_timestamp(time) if isinstance(time, datetime) else str(time),
    "uuid": str,
    "write": _nothing,
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
    """What a run waits for, and until when."""
    if wait.outcome is not None:
        return f"{_what(wait)}, which has come: the run is to go on"
    if wait.due_at is None:
        return f"{_what(wait)}, since {format_timestamp(wait.since)[:-4]} ({format_ago(wait.since)})"
    return f"{_what(wait)}, until {format_timestamp(wait.due_at)[:-4]} ({format_ago(wait.due_at)})"


def _what(wait: WaitInfo) -> str:
    if wait.kind == "sleep":
        return "its sleep" + (f" {wait.name}" if wait.name else "")
    if wait.kind == "message":
        return f"a message on {wait.name}"
    if wait.kind == "children":
        return f"{wait.pending} of its children ({wait.name})" if wait.pending != 1 else f"its child {wait.name}"
    return f"event {wait.name}"


# Values


def plain(value: Any) -> str:
    """A kept JSON value on one line, with its own letters; a very long one is cut where nothing else cuts it."""
    text = "" if value is None else json.dumps(value, ensure_ascii=False)
    return text if is_interactive() else cut(text, LONGEST_VALUE)


def one_line(text: str) -> str:
    return " ".join(text.split())


def short(error: ErrorInfo) -> str:
    return cut(one_line(str(error)), LONGEST_ERROR)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
