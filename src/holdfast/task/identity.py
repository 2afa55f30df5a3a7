"""The digests by which the arguments of steps and children are known again when a durable function is replayed.

They are pinned by tests: another digest for the same arguments would run finished steps of runs in flight again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import NotSerializable
from holdfast.model.codec import DIGEST_VERSION, canonical, decode, digest
from holdfast.task.options import Options
from holdfast.task.task import Task

LENGTH = len(DIGEST_VERSION) + 16
"""The version, and 64 bits in hexadecimal: enough to tell apart calls of one function in one run."""

_HINT = "pass plain values; or let the function find the object by itself, or capture it and give the step a name=…"


def _short(text: str) -> str:
    return digest(text)[:LENGTH]


NO_ARGUMENTS = _short(canonical([[], {}]))


def arguments_digest(step: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The digest of the arguments of a step."""
    if not args and not kwargs:
        return NO_ARGUMENTS
    try:
        return _short(canonical([args, kwargs], f"the arguments of step {step}"))
    except NotSerializable as error:
        raise NotSerializable(f"{error}; {_HINT}") from error


def child_digest(task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> str:
    """The digest of a child's arguments by name, defaults included, and of the options asked for.

    It is made of the values, not of the kept text: in that the members of a set stand in any order.
    """
    bound = canonical(task.signature.bound(args, kwargs), f"the arguments of task {task.name}")
    named = decode(task.signature.with_defaults(bound))
    return _short(canonical([named, options.canonical()]))


def items_digest(task: Task[..., Any], items: Iterable[Any], options: Options) -> str:
    """The digest of many children of one task. Piece by piece: together they may be larger than a payload."""
    whole = hashlib.sha256(canonical(options.canonical()).encode())
    for item in items:
        whole.update(b"\n")
        whole.update(canonical(item, f"the arguments of task {task.name}").encode())
    return (DIGEST_VERSION + whole.hexdigest())[:LENGTH]
