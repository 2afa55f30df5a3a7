"""What a schedule or trigger is defined as, and how the declarations of an app's code become stored definitions.

Several releases of an app may run side by side. A worker reports the digests of its declarations with its session, and
the declarations are reconciled with those of all live workers of the app:

* A schedule is orphaned only if no live worker of its app declares it.
* A declaration that another one replaced comes back only if no live worker has the one that replaced it.
* The schedule of another app is taken over only if no live worker of that app declares it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.database import Row
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.policy.schedule_timing import CatchUp, Timing
from holdfast.store.module import Tx, json_rows
from holdfast.store.rows import NewRun

ScheduleKind: TypeAlias = Literal["schedule", "trigger"]
Overlap: TypeAlias = Literal["allow", "skip", "buffer_one", "cancel_running"]
T = TypeVar("T")

CREATED = ""
"""The `app` of a schedule that was created at run time. No app has this name, so no code orphans such a schedule."""
KEEP_ORPHANED_MICROS = 7 * 86_400 * MICROS_PER_SECOND
"""How long a schedule is kept after it disappeared from its app's code."""
SHORT_ABSENCE_MICROS = 300 * MICROS_PER_SECOND
"""A schedule that was orphaned for a shorter time continues with its slots, as if it had never been."""
DELETE_IT = "a schedule of this name was created at run time: delete it, or rename one"
MAX_FORMER = 20
MAX_ACTIONS = 20


class ScheduleRules(msgspec.Struct, frozen=True):
    """How the slots of a schedule become runs. `jitter`: microseconds. `packed`: 1 if the arguments are packed."""

    catch_up: CatchUp = "skip"
    overlap: Overlap = "allow"
    jitter: int = 0
    packed: int | None = None


class DeclaredSchedule(msgspec.Struct, frozen=True):
    """A schedule or trigger as it is defined. A trigger has no template: its code creates requests."""

    name: str
    timing: Timing
    rules: ScheduleRules = ScheduleRules()
    template: NewRun | None = None

    def row(self, app: str) -> dict[str, Any]:
        """Return the row that statements take; equal for equal definitions."""
        run = self.template
        return {
            "name": self.name,
            "kind": "trigger" if run is None else "schedule",
            "app": app,
            "queue": None if run is None else run.queue,
            "task": None if run is None else run.task,
            "timing": to_text(self.timing),
            "rules": to_text(self.rules),
            "template": None if run is None else to_text(run, leave_out="id"),
        }

    @property
    def digest(self) -> str:
        """Identify the definition."""
        row = self.row("")
        return definition_digest(row["kind"], row["timing"], row["rules"], row["template"])


class Declared(Protocol):
    """A declaration of an app's code."""

    def row(self, app: str) -> dict[str, Any]:
        """Return the row that statements take; equal for equal declarations."""

    @property
    def digest(self) -> str:
        """Identify what is declared."""


class KnownDeclaration(Protocol):
    """What is stored of a declaration."""

    @property
    def name(self) -> str: ...
    @property
    def app(self) -> str: ...
    @property
    def orphaned(self) -> int: ...
    @property
    def orphaned_at(self) -> int | None: ...
    @property
    def former(self) -> str | None:
        """The digests of the declarations that it had before, as JSON."""

    @property
    def now(self) -> int: ...
    @property
    def digest(self) -> str: ...
    def is_moved(self, row: Mapping[str, Any]) -> bool:
        """Return whether its slots start again with the declared row."""


class DeclarationChanges(NamedTuple):
    """What a declaration changed, by name.

    `taken`: what another app had declared, with that app. `refused`: declarations without effect, with the reason.
    `removed`: what had been orphaned for long.
    """

    added: list[str]
    changed: list[str]
    orphaned: list[str]
    taken: dict[str, str]
    refused: dict[str, str]
    removed: list[str]

    def any(self) -> bool:
        """Return whether something has to be written."""
        return bool(self.added or self.changed or self.orphaned or self.removed)


class ScheduleAction(msgspec.Struct, frozen=True):
    """A change of a schedule by a person: when, by whom, and what. `at`: microseconds."""

    at: int
    by: str
    did: str


class _KnownSchedule(NamedTuple):
    """A stored schedule or trigger, as far as declarations are concerned."""

    name: str
    app: str
    kind: ScheduleKind
    timing: str
    rules: str
    template: str | None
    orphaned: int
    orphaned_at: int | None
    former: str | None
    now: int

    @property
    def digest(self) -> str:
        return definition_digest(self.kind, self.timing, self.rules, self.template)

    def is_moved(self, row: Mapping[str, Any]) -> bool:
        return (self.kind, self.timing) != (row["kind"], row["timing"])


class _ReportedDeclarations(msgspec.Struct):
    """The part of a session's info that tells which schedules and subscriptions its code declares."""

    app: str | None = None
    schedules: dict[str, str] = {}
    subscriptions: dict[str, str] = {}


LiveDeclarations: TypeAlias = dict[tuple[str, str], set[str]]
"""The digests that live workers declare, by app and name."""


def names_json(names: Iterable[str]) -> str:
    """Return names as the rows of a statement."""
    return json_rows({"name": name} for name in sorted(set(names)))


def declare(tx: Tx, app: str, declared: Mapping[str, DeclaredSchedule]) -> DeclarationChanges:
    """Reconcile the stored schedules of an app with those of its code."""
    known = known_schedules(tx.execute("lock_declared", app=app, rows=names_json(declared)))
    rows, changes = plan_declaration(
        app, declared, known, live_declarations(tx.execute("list_live_sessions"), "schedules"), DELETE_IT
    )
    now = int(tx.execute("read_clock")[0][0])
    for row in rows.values():
        row["next_at"] = first_time(row["kind"], declared[row["name"]].timing, now)
    for statement, names in (("add_schedules", changes.added), ("update_schedules", changes.changed)):
        if names:
            tx.execute(statement, rows=json_rows(rows[name] for name in sorted(names)))
    if changes.orphaned:
        tx.execute("orphan_schedules", rows=names_json(changes.orphaned))
    delete_schedules(tx, changes.removed)
    return changes


def delete_schedules(tx: Tx, names: Sequence[str]) -> None:
    """Delete locked schedules and triggers, with their slots and polls."""
    for statement in ("delete_schedules", "delete_slots", "delete_polls") if names else ():
        tx.execute(statement, rows=names_json(names))


def known_schedules(rows: Iterable[Row]) -> list[KnownDeclaration]:
    """Return the stored schedules and triggers from the rows of `read_declared`."""
    return [_KnownSchedule(*row) for row in rows]


def plan_declaration(
    app: str,
    declared: Mapping[str, Declared],
    stored: Iterable[KnownDeclaration],
    live: LiveDeclarations,
    instead: str = "",
) -> tuple[dict[str, dict[str, Any]], DeclarationChanges]:
    """Return the rows to write, without the next times, and what they change.

    `live`: what live workers declare. `instead`: why a declaration can't replace what was created at run time.
    """
    known = {row.name: row for row in stored}
    changes = DeclarationChanges([], [], [], {}, {}, [])
    rows = {name: each.row(app) for name, each in declared.items()}
    for name, each in declared.items():
        _compare(name, rows[name], each.digest, known.get(name), live, changes, instead)
    for name, row in known.items():
        if name in declared or row.app != app:
            continue
        if not row.orphaned:
            if (app, name) not in live:
                changes.orphaned.append(name)
        elif row.orphaned_at is None:  # orphaned by an older release: its time starts now
            changes.orphaned.append(name)
        elif row.now - row.orphaned_at > KEEP_ORPHANED_MICROS:
            changes.removed.append(name)
    return rows, changes


def _compare(
    name: str,
    row: dict[str, Any],
    digest: str,
    known: KnownDeclaration | None,
    live: LiveDeclarations,
    changes: DeclarationChanges,
    instead: str,
) -> None:
    """Note how the declared row differs from the stored one, and whether its slots start again (`moved`)."""
    app = row["app"]
    if known is None:
        changes.added.append(name)
        return
    if known.app == CREATED:
        changes.refused[name] = instead
        return
    if known.app != app and (known.app, name) in live:
        changes.refused[name] = f"app {known.app} declares it too: rename one"
        return
    former = _former(known.former)
    if known.app == app and digest == known.digest and not known.orphaned:
        return
    if digest in former and digest != known.digest and known.digest in live.get((app, name), ()):
        changes.refused[name] = "workers with a newer declaration are running"
        return
    was_short = known.orphaned_at is not None and known.now - known.orphaned_at < SHORT_ABSENCE_MICROS
    row["moved"] = int(known.is_moved(row) or (bool(known.orphaned) and not was_short))
    kept = [each for each in [*former, known.digest] if each != digest]
    row["former"] = msgspec.json.encode(kept[-MAX_FORMER:]).decode() if kept else None
    if known.app != app:
        changes.taken[name] = known.app
    changes.changed.append(name)


def live_declarations(sessions: Iterable[Row], kind: Literal["schedules", "subscriptions"]) -> LiveDeclarations:
    """Return what live workers have reported that their code declares."""
    found: LiveDeclarations = {}
    for *_, info in sessions:
        try:
            reported = msgspec.json.decode(info, type=_ReportedDeclarations)
        except (msgspec.MsgspecError, TypeError):  # corrupt, or of another release
            continue
        for name, digest in getattr(reported, kind).items():
            found.setdefault((reported.app or "", name), set()).add(digest)
    return found


def _former(text: str | None) -> list[str]:
    try:
        return [] if text is None else msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:  # a corrupt row
        return []


def definition_digest(*parts: str | None) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def first_time(kind: ScheduleKind, timing: Timing, now: int) -> int | None:
    """Return when something that starts now is due next: a trigger is polled at once."""
    return now if kind == "trigger" else timing.next_after(now)


def read_actions(text: str | None) -> list[ScheduleAction]:
    """Decode who changed a schedule, the oldest first; nothing if that is corrupt."""
    try:
        return [] if text is None else msgspec.json.decode(text, type=list[ScheduleAction])
    except msgspec.MsgspecError:
        return []


def add_action(text: str | None, at: int, by: str, did: str) -> str:
    """Append a change to the last ones."""
    actions = [*read_actions(text), ScheduleAction(at, by, did)]
    return msgspec.json.encode(actions[-MAX_ACTIONS:]).decode()


def to_text(thing: Any, leave_out: str = "") -> str:
    """Encode plain data as JSON, without fields that are None."""
    given = msgspec.to_builtins(thing)
    fields = {name: value for name, value in given.items() if value is not None and name != leave_out}
    return msgspec.json.encode(fields, order="sorted").decode()


def from_text(kind: type[T], text: str, **more: Any) -> T:
    """Decode what `to_text` encoded; raise TypeError if it is corrupt, or newer code wrote an unknown field."""
    try:
        return msgspec.convert(msgspec.to_builtins(kind(**msgspec.json.decode(text), **more)), kind)
    except msgspec.MsgspecError as error:
        raise TypeError(str(error)) from error
