"""What is on record as author code sees it: failures of steps, raised again in a replay, and what waits came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from holdfast.errors import ErrorInfo, Fatal, PayloadError, RunCancelled, RunFailed, StepFailed, WaitTimeout
from holdfast.model.codec import decode, encode
from holdfast.model.failure import error_from_json, error_to_json
from holdfast.model.names import dotted_name
from holdfast.store.commands import Outcome


def failure_text(error: ErrorInfo, exception: BaseException | None) -> str:
    """What is kept of a step's failure: the error, and the exception's class and arguments where they can be kept."""
    kept: dict[str, Any] = msgspec.json.decode(error_to_json(error))
    if exception is not None:
        with suppress(Exception):
            kept["class"] = dotted_name(type(exception))
            kept["args"] = decode(encode(exception.args))
    return msgspec.json.encode(kept).decode()


def fail(step: str, error: ErrorInfo, raises: tuple[type[Exception], ...], exception: BaseException | None) -> NoReturn:
    """A step has failed just now."""
    if exception is not None and raises and isinstance(exception, raises):
        raise exception
    raise StepFailed(step, error) from exception


def fail_again(step: str, text: str, raises: tuple[type[Exception], ...]) -> NoReturn:
    """A step's failure is on record: raise what was raised then."""
    rebuilt = _rebuild(text, raises) if raises else None
    if rebuilt is not None:
        raise rebuilt
    raise StepFailed(step, error_from_json(text))


def _rebuild(text: str, raises: tuple[type[Exception], ...]) -> Exception | None:
    """The exception of a kept failure, if it is one of those that shall come through as themselves."""
    try:
        kept = decode(text)
    except PayloadError:
        return None
    name = kept.get("class")
    kind = next((kind for kind in _with_subclasses(raises) if dotted_name(kind) == name), None)
    if kind is None:
        return None
    args = kept.get("args", [kept.get("message", "")])
    try:
        return kind(*args)
    except Exception:  # a class that wants other arguments than it keeps
        made = kind.__new__(kind)
        made.args = tuple(args)
        return made


def _with_subclasses(kinds: tuple[type[Exception], ...]) -> Iterator[type[Exception]]:
    for kind in kinds:
        yield kind
        yield from _with_subclasses(tuple(kind.__subclasses__()))


def causes(error: BaseException) -> set[int]:
    """The ids of an exception and of all that it came from: members of groups, causes, contexts."""
    found: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in found:
            continue
        found.add(id(one))
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
    return found


def payload(outcome: Outcome, what: str, kind: Any, unpack: Callable[[str], str]) -> Any:
    """What came of a wait, as the type that it was waited for with; raises WaitTimeout when nothing did."""
    if outcome.kind == "due":
        raise WaitTimeout(f"no {what} came in time")
    try:
        return decode(unpack(outcome.value or "null"), Any if kind is None else kind)
    except PayloadError as error:
        raise Fatal(f"the {what} isn't of the type that it is waited for with: {error}") from error


def end_of_child(row: Sequence[Any]) -> Sequence[Any]:
    id, _, state, result, error = row
    return str(id), state, result, error


def failure_of_child(child: str, end: Sequence[Any]) -> RunFailed | RunCancelled:
    """Return the exception for a failed or cancelled child; `child` is the name of its task or graph."""
    id, state, _, error = end
    info = error_from_json(error) if error else ErrorInfo("error", state, "")
    if state == "cancelled":
        return RunCancelled(UUID(id), info.message or None, child=child)
    return RunFailed(UUID(id), info, child=child)


def chosen_ends(rows: Sequence[Any], failed: str | None) -> Sequence[Any]:
    """All ends; or, where a failure ended the wait, that one."""
    return rows if failed is None else [row for row in rows if row[0] == failed]
