"""Describe history entries for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.errors import error_text
from holdfast.model.history import Entry
from holdfast.model.names import counted
from holdfast.model.step_keys import key_label

ENTRY_LABELS = {"concluded_early": "decided early", "let_go": "worker released", "set_aside": "set aside"}
"""History kinds whose stored name doesn't explain itself."""


def entry_label(entry: Entry) -> str:
    """Name the kind of a history entry for people."""
    return ENTRY_LABELS.get(entry.kind, entry.kind.replace("_", " "))


def describe_entry(entry: Entry, *, error: bool = True) -> list[str]:
    """Describe the data of a history entry for people, with its error or without."""
    return list(_entry_parts(entry, error))


def _entry_parts(entry: Entry, with_error: bool) -> Iterator[str]:
    data = entry.data
    failure = data.get("error")
    if with_error and isinstance(failure, dict) and failure.get("message"):
        yield error_text(str(failure.get("type", "error")), str(failure["message"]))
    if data.get("reason"):
        yield str(data["reason"])
    describe = _DESCRIPTIONS.get(entry.kind)
    if describe is not None and (text := describe(data)):
        yield text
    if data.get("by"):
        yield f"by {data['by']}"


def _describe_wait(data: Mapping[str, Any]) -> str:
    keys = data.get("waits_for")
    return "for " + ", ".join(key_label(str(key)) for key in keys) if isinstance(keys, list) else ""


def _describe_retry(data: Mapping[str, Any]) -> str:
    if data.get("changed"):
        return "starts over with other arguments"
    if data.get("starts_over"):
        return "starts over, because a node before it runs again"
    return f"from {key_label(str(data['from_step']))}" if data.get("from_step") else ""


def _describe_fork(data: Mapping[str, Any]) -> str:
    step, count = str(data.get("from_step") or ""), data.get("steps", 0)
    label = key_label(step) if "#" in step and " #" not in step else step
    at = f" at {label}" if label else ""
    if "nodes" in data:  # a graph
        at = " at its failed nodes" if data.get("from_failed") else at
        return f"from run {data.get('from')}{at}, {counted(int(data['nodes']), 'node')} to run again"
    if "steps" not in data:
        return f"outcome of run {data.get('from')}"
    return f"from run {data.get('from')}{at}, {count} {'checkpoint' if count == 1 else 'checkpoints'} kept"


def _describe_sent(data: Mapping[str, Any]) -> str:
    again = f"message {data['message']} again, " if data.get("message") else ""
    if data.get("ask"):
        return f"ask {data['ask']}"
    return f"{again}topic {data['topic']}" if data.get("topic") else ""


def _describe_drift(data: Mapping[str, Any]) -> str:
    steps, renamed = data.get("steps"), data.get("renamed")
    if not isinstance(steps, dict):
        return ""
    names = renamed if isinstance(renamed, dict) else {}
    changed = ", ".join(str(step) for step in steps if step not in names)
    parts = [f"arguments differ from the recorded ones: {changed}"] if changed else []
    parts += [f"{new} ran again what is recorded as {old}" for old, new in names.items()]
    return "; ".join(parts)


def _describe_try(data: Mapping[str, Any]) -> str:
    if "step" not in data:
        return ""
    return f"{data['step']}, try {data['try']} of {data['tries']}, next try {str(data['next_at'])[11:19]} UTC"


def _describe_next_attempt(data: Mapping[str, Any]) -> str:
    return f"next attempt {str(data['retry_at'])[11:19]} UTC" if data.get("retry_at") else ""


def _describe_lost_worker(data: Mapping[str, Any]) -> str:
    count = data.get("together")
    if not isinstance(count, int):
        return ""
    return f"its process had {count:,} runs, none is charged" if count else "the database was unreachable, not charged"


_CHANGED = {"args": "arguments", "run_at": "time"}

_DESCRIPTIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "enqueued": lambda data: f"schedule {data['schedule']}" if data.get("schedule") else "",
    "waiting": _describe_wait,
    "worker_lost": _describe_lost_worker,
    "retried": _describe_retry,
    "moved": lambda data: f"from {data.get('from')} to {data.get('to')}",
    "forked": _describe_fork,
    "appended": lambda data: (
        f"{data.get('nodes')} {'node' if data.get('nodes') == 1 else 'nodes'}, key {data.get('key')}"
    ),
    "concluded_early": lambda data: "to be completed" if data.get("outcome") == "done" else "to fail",
    "retrying": _describe_next_attempt,
    "timed_out": _describe_next_attempt,
    "step_retrying": _describe_try,
    "drift": _describe_drift,
    "sent": _describe_sent,
    "updated": lambda data: ", ".join(_CHANGED.get(str(name), str(name)) for name in data.get("changed") or ()),
    "budget_exceeded": lambda data: f"{data.get('budget')}: {data.get('spent')} of {data.get('limit')} spent",
    "budget_raised": lambda data: f"{data.get('budget')} to {data.get('limit')}",
    "set_aside": lambda data: (
        f"event {data['event']}" if "event" in data else f"message {data.get('message')} on topic {data.get('topic')}"
    ),
}
