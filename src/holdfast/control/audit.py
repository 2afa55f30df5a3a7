"""The audit log: every action of an operator, whichever interface it came from.

An interface says with `acting` who acts. Operations of `control` that change something are marked `audited`. The entry
is written before the operation and completed after it, so an action is never without one: if the process dies in
between, the entry has no outcome.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError, HoldfastError, StoreError
from holdfast.model.audit import AuditEntry, AuditPage, Outcome, Via
from holdfast.model.clock import time_to_micros, to_datetime
from holdfast.model.ids import new_id_text
from holdfast.model.names import actor_or_user, check_name
from holdfast.store import Store
from holdfast.store.audit import AuditFilter, AuditRow
from holdfast.store.run_reader import run_id

P = ParamSpec("P")
T = TypeVar("T")

MAX_ENTRIES = 1000
MAX_TEXT_CHARS = 300
MAX_SUBJECT_CHARS = 500
OUTCOMES: tuple[Outcome, ...] = ("done", "unchanged", "refused", "failed")
_LEFT_OUT = frozenset({"self", "by", "payload", "output", "args", "after", "progress", "with_gates"})
"""Parameters that say nothing about an action, or may contain data of customers."""


class Actor(NamedTuple):
    """Who acts, by which interface, from which address, and the tenant that limits what they may do."""

    by: str
    via: Via
    client: str | None = None
    tenant: str | None = None


_actor: ContextVar[Actor | None] = ContextVar("holdfast_actor", default=None)


@contextmanager
def acting(by: str, via: Via, client: str | None = None, tenant: str | None = None) -> Iterator[None]:
    """Say who performs the operations within."""
    token = _actor.set(Actor(by, via, client, tenant))
    try:
        yield
    finally:
        _actor.reset(token)


class AuditRecord:
    """The entry of an action that is being performed."""

    def __init__(self, detail: dict[str, Any]) -> None:
        self.detail = detail
        self.outcome: Outcome = "done"


class AuditControl:
    """Records actions, and reads what was recorded."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def record(
        self, action: str, subject: object = None, by: str | None = None, **detail: Any
    ) -> Iterator[AuditRecord]:
        """Record an action: before it begins, and how it ended."""
        with record(self._store, action, subject, by, detail) as entry:
            yield entry

    def page(
        self,
        *,
        by: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        outcome: str | None = None,
        tenant: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        after: UUID | str | None = None,
    ) -> AuditPage:
        """List entries that match all filters, newest first; pass the page's `after` to get the next page."""
        if outcome is not None and outcome not in OUTCOMES:
            raise ConfigError(f"unknown outcome {outcome[:40]!r}: use {', '.join(OUTCOMES)}")
        if not 1 <= limit <= MAX_ENTRIES:
            raise ConfigError(f"limit must be from 1 to {MAX_ENTRIES:,}, not {limit}")
        filters = AuditFilter(
            _text("by", by),
            _text("action", action),
            _text("subject", subject),
            outcome,
            _text("tenant", tenant),
            None if since is None else time_to_micros(since, "since"),
            None if until is None else time_to_micros(until, "until"),
        )
        cursor = None if after is None else str(run_id(str(after)))
        found = self._store.audit.page(filters, limit, cursor)
        return AuditPage(
            list(map(_entry, found.rows)), None if found.after is None else UUID(found.after), found.partial
        )


def audited(
    action: str, subject: str | None = None, *, unless_api: bool = False
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Record the calls of an operation of `control`. `subject`: the parameter that says what it is about.

    `{name}` in `action` stands for a parameter. A result that is false or empty means that nothing was changed.
    `unless_api`: what applications do all the time isn't recorded if it comes by the API.
    """

    def decorate(operation: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(operation)

        @functools.wraps(operation)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            actor = _actor.get()
            if unless_api and actor is not None and actor.via == "api":
                return operation(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            given: dict[str, Any] = {
                name: list(value) if isinstance(value, Iterator) else value for name, value in bound.arguments.items()
            }
            bound.arguments.update(given)
            about = None if subject is None else given.get(subject)
            detail = {name: value for name, value in given.items() if name not in (*_LEFT_OUT, subject)}
            store: Store = given["self"]._store
            with record(store, action.format(**given), about, given.get("by"), detail) as entry:
                result = operation(*bound.args, **bound.kwargs)
                if result is not None and not result:
                    entry.outcome = "unchanged"
                return result

        call.audited = action  # type: ignore[attr-defined]
        return call

    return decorate


@contextmanager
def record(
    store: Store, action: str, subject: object, by: str | None, detail: Mapping[str, Any]
) -> Iterator[AuditRecord]:
    """Write an entry, perform the action, and record how it ended."""
    actor = _actor.get() or Actor(actor_or_user(by), "python")
    entry = AuditRecord({name: _plain(value) for name, value in detail.items() if value is not None})
    row = AuditRow(
        id=new_id_text(),
        at=0,
        actor=by or actor.by,
        action=action,
        subject=_subject(subject),
        via=actor.via,
        client=actor.client,
        outcome=None,
        detail=_encode(entry.detail),
        tenant=actor.tenant or _tenant(detail),
    )
    store.audit.add(row, str(subject) if isinstance(subject, UUID) else None)
    try:
        yield entry
    except GeneratorExit:  # the caller of a bulk action stops it early
        store.audit.finish(row.id, entry.outcome, _encode(entry.detail))
        raise
    except BaseException as error:
        refused = isinstance(error, HoldfastError) and not isinstance(error, StoreError)
        text = f"{type(error).__name__}: {error}".strip(": ")[:MAX_TEXT_CHARS]
        with suppress(StoreError):  # the original error says more
            store.audit.finish(row.id, "refused" if refused else "failed", _encode(entry.detail | {"error": text}))
        raise
    store.audit.finish(row.id, entry.outcome, _encode(entry.detail))


def describe_detail(entry: AuditEntry) -> str:
    """Return the details of an entry for people, on one line."""
    parts = [
        f"{name}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for name, value in entry.detail.items()
    ]
    return ", ".join(parts)


def _subject(value: object) -> str | None:
    if value is None:
        return None
    names = [value] if isinstance(value, str) or not isinstance(value, Iterable) else sorted(map(str, value))
    return ", ".join(map(str, names))[:MAX_SUBJECT_CHARS]


def _tenant(detail: Mapping[str, Any]) -> str | None:
    """Return the tenant that the parameters of an action name."""
    found = detail.get("tenant", getattr(detail.get("filter"), "tenant", None))
    return found if isinstance(found, str) else None


def _plain(value: Any) -> Any:
    """Return a parameter as short JSON."""
    if isinstance(value, datetime | UUID):
        return str(value)
    if isinstance(value, msgspec.Struct):
        parts = {name: _plain(each) for name, each in msgspec.structs.asdict(value).items()}
        return {name: each for name, each in parts.items() if each not in (None, [], {}, False)}
    data = msgspec.json.encode(value, enc_hook=str)
    return msgspec.json.decode(data) if len(data) <= MAX_TEXT_CHARS else f"{data.decode()[:MAX_TEXT_CHARS]}…"


def _encode(detail: Mapping[str, Any]) -> str:
    return msgspec.json.encode(detail, enc_hook=str).decode()


def _entry(row: AuditRow) -> AuditEntry:
    detail: dict[str, Any] = {}
    with suppress(msgspec.DecodeError):  # a corrupt row
        detail = msgspec.json.decode(row.detail, type=dict[str, Any])
    return AuditEntry(
        id=_id(row.id),
        at=to_datetime(row.at),
        by=row.actor,
        action=row.action,
        subject=row.subject,
        via=row.via,
        client=row.client,
        outcome=row.outcome,
        tenant=row.tenant,
        detail=detail,
    )


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:  # a corrupt row
        return UUID(int=0)


def _text(name: str, value: str | None) -> str | None:
    return None if value is None else check_name(value, name, MAX_SUBJECT_CHARS)
