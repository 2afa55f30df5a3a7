"""The few places where the SQL of the two databases differs, as fragments that statements name in braces.

| fragment | meaning |
| --- | --- |
| `{schema}` | stands before every table's name |
| `{in_schema}` | stands before an index's name when it is dropped |
| `{now}` | the transaction's time in microseconds, for finding rows (an index can be used) |
| `{stamp}` | the same, for what is written about many rows: worked out once for the statement, not for each row |
| `{clock}` | the time right now, for judging leases after a lock was taken |
| `{each(:rows, id uuid, n int)}` | a JSON array of objects as rows named `each`, with typed columns |
| `{each_text(x)}` | a JSON array of texts as rows named `each` with the column `value` |
| `{error_text(x)}` | what people search for in a kept error: its code, type and message, a line each |
| `{among(:rows, id uuid)}`, `{among(due, id)}` | is one of these, of a batch or a CTE; found by the index |
| `{matching(:rows, id uuid)}` | the same where `each` is joined by an equality as well |
| `{lock}` | lock the rows read here |
| `{lock_free}` | lock them, passing over those that others hold |
| `{lock_shared}` | hold the row, so that it can't be taken away, without hindering its heartbeat |
| `{lock_whole}` | lock the row against its holders too, passing over those that others hold |
| `{name_lock(x)}` | lock a name, whether or not a row has it, until the transaction ends |
| `{turn_at(time)}` | the turn of a run that became ready at that time (`store/turns.py`) |
| `{next_turn(r, time)}` | the turn of the run `r` that becomes ready again: by time, or its tenant's next |
| `{limit}` | the size that a statement is asked for, as a literal |
| `{double_limit}` | twice that: how far to look where others may be faster |
| `{old_snapshot}` | whether this transaction doesn't see what others commit meanwhile |
| `{notify_workers}` | a value that tells idle workers of new work; costs nothing while none is idle |
| `{notify_clients}` | a value that notifies waiting clients of ended runs; costs nothing while none waits |
| `{uuid}`, `{serial}`, `{run_key}`, `{clustered}`, `{time(x)}` | in the schema: types, keys, readable times |
| `{storage(runs, fillfactor = 50)}` | in the schema: how a table is stored, where that can be said |
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.errors import ConfigError

PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
"""A statement's parameter. No statement has a colon inside a literal, and none uses `::`."""

TURN_EPOCH = 10**18
"""Microseconds. Subtracted from times, so that turns of queues that aren't fair are negative: the index of fair turns
has only positive ones, so an enqueue to a queue that isn't fair doesn't write to it."""
TURN_STEP = 1_000_000
"""How far one run advances the turn of a tenant of weight 1 in a fair queue."""

_FRAGMENT = re.compile(r"\{(\w+)(?:\(([^()]*)\))?\}")
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")


class Dialect(ABC):
    """Fills the fragments of a statement's text."""

    name: str
    notifies: bool
    """Whether `{notify_workers}` and `{notify_clients}` tell anyone."""
    schema = "holdfast"
    """Where the tables are; where a database has no schemas, what stands for one in an app that is moved to another."""
    writing_ctes: bool
    """Whether one statement can change several tables (`WITH x AS (UPDATE …)`)."""

    def fill(self, text: str, limit: int | None = None) -> str:
        """The text with its fragments filled, also those that a fragment brings along."""

        def replace(match: re.Match[str]) -> str:
            name, argument = match.groups()
            if name in ("limit", "double_limit"):
                if limit is None:
                    raise LookupError(f"a statement with {{{name}}} needs a size")
                return str(limit if name == "limit" else 2 * limit)
            fragment: str | Callable[[str], str] = getattr(self, f"_{name}")
            return fragment(argument) if callable(fragment) else fragment

        while _FRAGMENT.search(text):
            text = _FRAGMENT.sub(replace, text)
        return text

    @staticmethod
    def _turn_at(time: str) -> str:
        return f"({time} - {TURN_EPOCH})"

    @staticmethod
    def _next_turn(argument: str) -> str:
        """One microsecond later than the turn of a run that is new at that time, so that new runs go first."""
        run, time = [part.strip() for part in argument.split(",")]
        return f"""case
            when {run}.turn <= 0 then {{turn_at({time})}} + 1
            when {run}.fence = 0 then {run}.turn
            else {TURN_STEP} + (
                select coalesce(max(turns.own), min(case when turns.head > 0 then turns.head end), 0) from (
                    select (
                        select max(x.turn) from {{schema}}runs x where x.lane = l.id
                        and coalesce(x.tenant, '') = coalesce({run}.tenant, '') and x.state = 'ready' and x.turn > 0
                    ) as own, (
                        select x.turn from {{schema}}runs x where x.lane = l.id and x.state = 'ready' and x.held is null
                        order by x.priority desc, x.turn, x.seq limit 1
                    ) as head
                    from {{schema}}lanes l
                    where l.queue = (select q.queue from {{schema}}lanes q where q.id = {run}.lane)
                ) turns
            ) end"""

    @abstractmethod
    def number_parameters(self, text: str, names: tuple[str, ...]) -> str:
        """The text with its `:name` parameters in the driver's own form."""


def _columns(argument: str) -> tuple[str, list[tuple[str, str]]]:
    """Parse the argument of `{each(:rows, id uuid, n int)}`."""
    source, *columns = [part.strip() for part in argument.split(",")]
    return source, [(name, kind) for name, kind in (column.split() for column in columns)]


class PostgresDialect(Dialect):
    """PostgreSQL 14 and later."""

    name = "postgres"
    notifies = True
    writing_ctes = True

    _now = "coalesce(cast(:now as bigint), cast(extract(epoch from now()) * 1000000 as bigint))"
    _stamp = "(select {now})"
    _clock = "coalesce(cast(:now as bigint), cast(extract(epoch from clock_timestamp()) * 1000000 as bigint))"
    _lock = "for no key update"
    _lock_free = "for no key update skip locked"
    _lock_shared = "for key share"
    _lock_whole = "for update skip locked"
    _uuid = "uuid"
    _serial = "bigint generated always as identity primary key"
    _run_key = "id uuid primary key, seq bigint generated always as identity"
    _clustered = ""
    _old_snapshot = "current_setting('transaction_isolation') <> 'read committed'"
    _notify_workers = (
        "(select cast(pg_notify('{channel}', '') as text)"
        " where exists (select 1 from {schema}workers where idle = 1 and lease_until > {now}))"
    )
    _notify_clients = (
        "(select cast(pg_notify('{ends_channel}', '') as text)"
        " where exists (select 1 from {schema}watchers where expires_at > {now}))"
    )

    def __init__(self, schema: str) -> None:
        if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema):
            shown = repr(schema)[:60]
            raise ConfigError(
                f"schema {shown} can't be used: take a name of letters, digits and underscores,"
                " at most 50 characters, not starting with a digit"
            )
        self.schema = schema
        self.channel = f"holdfast_{schema}"
        self.ends_channel = f"ends.{schema}"  # a dot, which no schema has: it is nobody's channel of work
        self._schema = self._in_schema = f'"{schema}".'
        self._channel = self.channel
        self._ends_channel = self.ends_channel

    @staticmethod
    def _each(argument: str) -> str:
        source, columns = _columns(argument)
        typed = ", ".join(f"{name} {kind}" for name, kind in columns)
        return f"jsonb_to_recordset(cast({source} as jsonb)) as each({typed})"

    @staticmethod
    def _each_text(argument: str) -> str:
        return f"jsonb_array_elements_text(cast({argument} as jsonb)) as each(value)"

    @staticmethod
    def _error_text(argument: str) -> str:
        """Read once: a traceback makes it long."""
        kept = f"(select cast({argument} as jsonb) as e offset 0) as kept"
        return f"(select concat_ws(chr(10), e ->> 'code', e ->> 'type', e ->> 'message') from {kept})"

    @staticmethod
    def _among(argument: str) -> str:
        """An array, because its size is taken for small: a join may be planned as a walk over the whole table."""
        source, column = [part.strip() for part in argument.split(",")]
        if not source.startswith(":"):
            return f"= any(array(select {column} from {source}))"
        return f"= any(array(select {column.split()[0]} from {PostgresDialect._each(argument)}))"

    _matching = _among

    @staticmethod
    def _name_lock(argument: str) -> str:
        return f"cast(pg_advisory_xact_lock(hashtextextended({argument}, 0)) as text)"

    @staticmethod
    def _time(argument: str) -> str:
        return f"to_timestamp({argument} / 1000000.0)"

    @staticmethod
    def _storage(argument: str) -> str:
        table, settings = argument.split(",", 1)
        return f"alter table {{schema}}{table} set ({settings})"

    def number_parameters(self, text: str, names: tuple[str, ...]) -> str:
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        return PARAMETER.sub(lambda match: numbers[match[1]], text)


class SqliteDialect(Dialect):
    """SQLite, as apsw brings it. Its own tables have a prefix, because they may share a file with the user's."""

    name = "sqlite"
    notifies = False
    writing_ctes = False

    _schema = "holdfast_"
    _in_schema = ""
    _now = "coalesce(:now, cast(unixepoch('now', 'subsec') * 1000000 as integer))"
    _stamp = _clock = _now  # SQLite works it out once anyway
    _lock = _lock_free = _lock_shared = _lock_whole = ""
    _uuid = "text"
    _serial = "integer primary key autoincrement"
    _run_key = "seq integer primary key autoincrement, id text not null unique"
    _clustered = "without rowid"
    _old_snapshot = "1 = 0"
    _notify_workers = _notify_clients = "null"

    @staticmethod
    def _each(argument: str) -> str:
        source, columns = _columns(argument)
        picked = ", ".join(f"value ->> '{name}' as {name}" for name, _ in columns)
        return f"(select {picked} from jsonb_each({source})) as each"

    @staticmethod
    def _each_text(argument: str) -> str:
        return f"json_each(case when json_valid({argument}) then {argument} end) as each"

    @staticmethod
    def _error_text(argument: str) -> str:
        kept = f"case when json_valid({argument}) then {argument} end"
        parts = (f"coalesce(({kept}) ->> '{part}', '')" for part in ("code", "type", "message"))
        return "(" + " || char(10) || ".join(parts) + ")"

    @staticmethod
    def _among(argument: str) -> str:
        source, column = [part.strip() for part in argument.split(",")]
        if not source.startswith(":"):
            return f"in (select {column} from {source})"
        return f"in (select value ->> '{column.split()[0]}' from jsonb_each({source}))"

    @staticmethod
    def _matching(argument: str) -> str:  # noqa: ARG004 - the equality says it all
        """Nothing: SQLite would take it for the way to the rows, and look for each of them through the whole batch."""
        return "is not null"

    @staticmethod
    def _name_lock(argument: str) -> str:
        return argument  # a transaction that writes is alone anyway

    @staticmethod
    def _storage(argument: str) -> str:  # noqa: ARG004 - rows are changed in place
        return ""

    @staticmethod
    def _time(argument: str) -> str:
        return f"strftime('%Y-%m-%d %H:%M:%f', {argument} / 1000000.0, 'unixepoch')"

    def number_parameters(self, text: str, names: tuple[str, ...]) -> str:  # noqa: ARG002 - SQLite takes names
        return text
