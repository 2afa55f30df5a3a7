"""SQL fragments for the few places where PostgreSQL and SQLite differ. Statements name them in braces.

| fragment | meaning |
| --- | --- |
| `{schema}` | prefix of every table name |
| `{in_schema}` | prefix of an index name when the index is dropped |
| `{now}` | time of the transaction in microseconds, for conditions (lets an index be used) |
| `{stamp}` | the same, for written values: evaluated once per statement, not per row |
| `{clock}` | current time, for lease checks after a lock was acquired |
| `{each(:rows, id uuid, n int)}` | a JSON array of objects as a table `each` with typed columns |
| `{each_text(x)}` | a JSON array of strings as a table `each` with the column `value` |
| `{raw(x)}` | a column as stored; on SQLite, text and blobs in hexadecimal, marked by \\1t and \\1b |
| `{error_text(x)}` | searchable text of a stored error: code, type and message, one per line |
| `{listed_args(r)}` | arguments of run `r` (all if short, their start, or null if very long), their size, metadata |
| `{members(name, value)}` | aggregates names and JSON texts to the members of a JSON object |
| `{id_list(id, condition)}` | aggregates the ids of rows that meet a condition to a JSON array |
| `{listed_run(r)}` | the columns of run `r` in `shown_runs`, but no result, which may be large |
| `{among(:rows, id uuid)}`, `{among(due, id)}` | is in a batch or a CTE; uses the index of the column |
| `{matching(:rows, id uuid)}` | the same where `each` is also joined by equality |
| `{among_keys(waits, :rows, run uuid, key text)}` | is one of the rows of a table with these keys of several columns |
| `{lookup(waits w, w.run = each.run and …)}` | joins `each` with rows of a table, one by one; an index may follow |
| `{is_row(waits w, run key)}` | the row to update is the row that `lookup` found; with the columns of the key |
| `{lock}` | lock the selected rows |
| `{lock_skip_locked}` | lock the selected rows, skipping locked ones |
| `{lock_shared}` | keep the row from being deleted, without blocking its heartbeat |
| `{lock_exclusive}` | lock the row against `{lock_shared}` too, skipping locked ones |
| `{name_lock(x)}` | lock a name until the transaction ends, whether or not a row has it |
| `{turn_at(time)}` | turn of a run that became ready at that time (`store/enqueue.py`) |
| `{new_turn(each.turn)}` | turn of a new run: as given; if negative, relative to that of a run that is ready now |
| `{age_shift(r)}` | how far the turn of run `r` is before that of a run of its age in an ordinary queue |
| `{next_turn(r, time)}` | turn of run `r` when it becomes ready again: by time, or its tenant's next one |
| `{limit}` | the statement's limit, as a literal |
| `{double_limit}` | twice the limit, for reads whose rows another worker may lock first |
| `{wide_limit}` | 32 times the limit, for reads that pass over rows that other workers have locked |
| `{old_snapshot}` | whether this transaction can't see what others commit meanwhile |
| `{notify_workers}` | notifies one idle worker of each group, except the acting one; free while none is idle |
| `{acting_session(:session)}` | names the worker that acts in this transaction: it needs no notification |
| `{notify_clients}` | notifies clients that wait for results; free while none waits |
| `{notify_other_clients(:watcher)}` | the same, unless only this watcher waits |
| `{notify_followers}` | notifies clients that follow streams; free while none does |
| `{indexed_by(name)}` | on SQLite, the index to use where its planner chooses another one |
| `{uuid}`, `{serial}`, `{run_key}`, `{clustered}`, `{time(x)}` | schema: types, keys, readable times |
| `{storage(runs, fillfactor = 50)}` | schema: storage parameters, where the database has them |
| `{check(runs, name, condition)}` | schema: a constraint for new and changed rows, where the database can add one |
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.database.faults import UNEXPECTED
from holdfast.errors import ConfigError

PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
"""A parameter of a statement. No statement has a colon inside a literal or uses `::`."""

TURN_EPOCH = 10**18
"""Microseconds subtracted from times, which makes turns in queues that aren't fair negative. The index of fair turns
covers only positive ones, so an enqueue to a queue that isn't fair doesn't write to it."""
AGED_TURN_OFFSET = 2 * 10**18
"""Subtracted from the turns of runs in queues with `age_priority`, so that statements recognize them: only these turns
are below minus this number."""
TURN_STEP = 1_000_000
"""How far one run advances the turn of a tenant of weight 1 in a fair queue."""

MAX_LISTED_ARGS_BYTES = 2000
"""Longer arguments are cut in lists."""
MAX_CUT_ARGS_BYTES = 32 * 1024
"""Of longer arguments, lists read only the size: SQLite would read all of them to cut them."""
CUT_ARGS_CHARS = 200
SHOWN_RUN_COLUMNS = (
    "id queue task state priority attempt crashes error result created_at started_at finished_at session tenant tags "
    "due_at claimed_at held parent progress undoing kind node spawn_key place options seq"
)
"""The columns of the view `shown_runs`, in its order."""
MAX_TURN = 2**62
"""Turns beyond are corrupt; they don't count, so that no other turn overflows."""
MAX_TIME_MICROS = 4 * 10**17
"""About the year 14,600. Times beyond are corrupt; sums and differences of others don't overflow."""

_LIMIT_FACTORS = {"limit": 1, "double_limit": 2, "wide_limit": 32}
_FRAGMENT = re.compile(r"\{(\w+)(?:\(([^()]*)\))?\}")
_CALL = re.compile(r"(?<![\w.])([a-z_][a-z0-9_]*)\(")
_CALL_SYNTAX = {"any", "array", "cast", "coalesce", "each", "extract", "greatest", "least", "nullif"}
"""What looks like a function call but is syntax, and the alias of `{each(…)}`. Other parentheses follow a space."""
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")


def check_schema(schema: object) -> str:
    """Return the name of a schema, if it is valid."""
    if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema):
        raise ConfigError(
            f"invalid schema {repr(schema)[:60]}: use letters, digits and underscores, at most 50 characters,"
            " not starting with a digit"
        )
    return schema


class Dialect(ABC):
    """Expands the fragments of a statement."""

    name: str
    notifies: bool
    """Whether `{notify_workers}` and `{notify_clients}` have an effect."""
    schema = "holdfast"
    """Schema of the tables. SQLite has none; the default is used when an app moves to PostgreSQL."""
    single_writer: bool
    """Whether only one connection can write at a time, so that a statement which may write delays all others."""

    def fill(self, text: str, limit: int | None = None) -> str:
        """Expand all fragments, including those that fragments contain."""

        def replace(match: re.Match[str]) -> str:
            name, argument = match.groups()
            if name in _LIMIT_FACTORS:
                if limit is None:
                    raise LookupError(f"a statement with {{{name}}} needs a limit")
                return str(_LIMIT_FACTORS[name] * limit)
            fragment: str | Callable[[str], str] = getattr(self, f"_{name}")
            return fragment(argument) if callable(fragment) else fragment

        while _FRAGMENT.search(text):
            text = _FRAGMENT.sub(replace, text)
        return text

    @staticmethod
    def _turn_at(time: str) -> str:
        return f"({time} - {TURN_EPOCH})"

    @staticmethod
    def _new_turn(turn: str) -> str:
        now = "{turn_at({stamp})}"
        return f"coalesce(case when {turn} < 0 then {now} + {turn} else {turn} end, {now})"

    @staticmethod
    def _next_turn(argument: str) -> str:
        """Return SQL for one microsecond after the turn of a run that is new at that time: new runs go first."""
        run, time = [part.strip() for part in argument.split(",")]
        return f"""case
            when {run}.turn < -{AGED_TURN_OFFSET} then {{turn_at({time})}} + 1 - {{age_shift({run})}}
            when {run}.turn <= 0 then {{turn_at({time})}} + 1
            when {run}.fence = 0 then {run}.turn
            else {TURN_STEP} + (
                select coalesce(
                    max(turns.own), min(case when turns.head between 1 and {MAX_TURN} then turns.head end), 0
                ) from (
                    select (
                        select max(x.turn) from {{schema}}runs x where x.lane = l.id
                        and coalesce(x.tenant, '') = coalesce({run}.tenant, '') and x.state = 'ready' and x.turn > 0
                        and x.turn <= {MAX_TURN}
                    ) as own, (
                        select x.turn from {{schema}}runs x where x.lane = l.id and x.state = 'ready' and x.held is null
                        order by x.priority desc, x.turn, x.seq limit 1
                    ) as head
                    from {{schema}}lanes l
                    where l.queue = (select q.queue from {{schema}}lanes q where q.id = {run}.lane)
                ) turns
            ) end"""

    @staticmethod
    def _claimable(run: str) -> str:
        """Return a condition that excludes paused runs and those of paused tenants."""
        return (
            f"{run}.paused_at is null"
            f" and ({run}.tenant is null or {run}.tenant not in (select p.tenant from {{schema}}paused_tenants p))"
        )

    @staticmethod
    def _listed_run(run: str) -> str:
        return ", ".join(
            "cast(null as text)" if name == "result" else f"{run}.{name}" for name in SHOWN_RUN_COLUMNS.split()
        )

    @staticmethod
    def _listed_args(run: str) -> str:
        """Return three columns. `octet_length` reads no payload on either database."""
        source = f"from {{schema}}runs a where a.id = {run}.id"
        return f"""(
                select case when octet_length(a.args) <= {MAX_LISTED_ARGS_BYTES} then a.args
                    when octet_length(a.args) <= {MAX_CUT_ARGS_BYTES} then substr(a.args, 1, {CUT_ARGS_CHARS}) end
                {source}
            ), (select octet_length(a.args) {source}),
            (select {{members(m.name, m.value)}} from {{schema}}metadata m where m.run = {run}.id)"""

    @abstractmethod
    def number_parameters(self, text: str, names: tuple[str, ...]) -> str:
        """Replace `:name` parameters with the driver's own form."""


def _columns(argument: str) -> tuple[str, list[tuple[str, str]]]:
    """Parse the argument of `{each(:rows, id uuid, n int)}`."""
    source, *columns = [part.strip() for part in argument.split(",")]
    return source, [(name, kind) for name, kind in (column.split() for column in columns)]


def _qualify_call(match: re.Match[str]) -> str:
    name = match[1]
    return match[0] if name in _CALL_SYNTAX else f"pg_catalog.{name}("


class PostgresDialect(Dialect):
    """PostgreSQL 14 and later."""

    name = "postgres"
    notifies = True
    single_writer = False

    _now = "coalesce(cast(:now as bigint), cast(extract(epoch from now()) * 1000000.0 as bigint))"
    _stamp = "(select {now})"
    _clock = "coalesce(cast(:now as bigint), cast(extract(epoch from clock_timestamp()) * 1000000.0 as bigint))"
    _lock = "for no key update"
    _lock_skip_locked = "for no key update skip locked"
    _lock_shared = "for key share"
    _lock_exclusive = "for update skip locked"
    _uuid = "uuid"
    _serial = "bigint generated always as identity primary key"
    _run_key = "id uuid primary key, seq bigint generated always as identity"
    _clustered = ""
    _old_snapshot = "current_setting('transaction_isolation') <> 'read committed'"
    _notify_workers = (
        "(select count(cast(pg_notify(w.channel, '') as text)) from ("
        "select min(coalesce(wake_channel, '{channel}')) as channel from {schema}workers"
        " where idle = 1 and lease_until > {now} and coalesce(wake_channel, '{channel}') <> ''"
        " and session <> coalesce(current_setting('holdfast.session', true), '') group by wake_group) w)"
    )
    _notify_clients = (
        "(select cast(pg_notify('{ends_channel}', '') as text)"
        " where exists (select 1 from {schema}watchers where expires_at > {now}))"
    )
    _notify_followers = (
        "(select cast(pg_notify('{chunks_channel}', '') as text)"
        " where exists (select 1 from {schema}watchers where id like 'follower:%' and expires_at > {now}))"
    )

    def __init__(self, schema: str) -> None:
        self.schema = check_schema(schema)
        self.channel = f"holdfast_{schema}"
        self.ends_channel = f"ends.{schema}"  # no schema name has a dot, so no other schema's channel is the same
        self._schema = self._in_schema = f'"{schema}".'
        self._channel = self.channel
        self._ends_channel = self.ends_channel
        self.chunks_channel = self._chunks_channel = f"chunks.{schema}"

    def fill(self, text: str, limit: int | None = None) -> str:
        """Expand all fragments and qualify function names, so that no other schema's function is called instead.

        Operators aren't qualified: a statement uses only combinations of types that `pg_catalog` has an operator for.
        Statements that run on a caller's connection depend on this, because its `search_path` may name any schema.
        """
        return _CALL.sub(_qualify_call, super().fill(text, limit))

    @staticmethod
    def _replace_view(name: str) -> str:
        return f"create or replace view {{schema}}{name}"

    @staticmethod
    def _each(argument: str) -> str:
        source, columns = _columns(argument)
        typed = ", ".join(f"{name} {kind}" for name, kind in columns)
        return f"jsonb_to_recordset(cast({source} as jsonb)) as each({typed})"

    @staticmethod
    def _notify_other_clients(argument: str) -> str:
        others = f"id <> coalesce(cast({argument} as text), '')"
        return (
            "(select cast(pg_notify('{ends_channel}', '') as text)"
            f" where exists (select 1 from {{schema}}watchers where expires_at > {{now}} and {others}))"
        )

    @staticmethod
    def _acting_session(argument: str) -> str:
        return f"set_config('holdfast.session', cast({argument} as text), true)"

    @staticmethod
    def _expect(argument: str) -> str:
        """Return SQL that fails with `ExpectationFailed` unless a condition on rows is true.

        Of the errors that plain SQL can raise on purpose, this one has a message that the server's log can show.
        """
        return f"cast(case when {argument} then '1' else '{UNEXPECTED}' end as int)"

    @staticmethod
    def _each_text(argument: str) -> str:
        return f"jsonb_array_elements_text(cast({argument} as jsonb)) as each(value)"

    @staticmethod
    def _raw(argument: str) -> str:
        return argument

    @staticmethod
    def _error_text(argument: str) -> str:
        """Parse the stored error once, because a traceback makes it long."""
        stored = f"(select cast({argument} as jsonb) as e offset 0) as stored"
        parts = ", ".join(f"e ->> cast('{part}' as text)" for part in ("code", "type", "message"))
        return f"(select concat_ws(chr(10), {parts}) from {stored})"

    @staticmethod
    def _members(argument: str) -> str:
        name, value = [part.strip() for part in argument.split(",")]
        return f"string_agg(cast(to_json({name}) as text) || chr(58) || {value}, chr(44) order by {name})"

    @staticmethod
    def _id_list(argument: str) -> str:
        id, condition = [part.strip() for part in argument.split(",")]
        return f"cast(json_agg(cast({id} as text)) filter (where {condition}) as text)"

    @staticmethod
    def _among(argument: str) -> str:
        """Return an array comparison: the planner assumes a short array, but may scan the whole table for a join."""
        source, column = [part.strip() for part in argument.split(",")]
        if not source.startswith(":"):
            return f"= any(array(select {column} from {source}))"
        return f"= any(array(select {column.split()[0]} from {PostgresDialect._each(argument)}))"

    _matching = _among

    @staticmethod
    def _lookup(argument: str) -> str:
        """Return a join that no statistics can reorder.

        The planner assumes that a batch has a hundred rows. It would rather read all rows of one large run by the first
        column of their key than make a hundred lookups by the whole key.
        """
        table, condition, *_ = argument.split(",")
        name, alias = table.split()
        rows = f"select {alias}.ctid as tid, {alias}.* from {{schema}}{name} {alias} where {condition.strip()} offset 0"
        return f"cross join lateral ({rows}) {alias}"

    @staticmethod
    def _is_row(argument: str) -> str:
        name, alias = argument.split(",")[0].split()
        return f"{{schema}}{name}.ctid = {alias}.tid"

    @staticmethod
    def _among_keys(argument: str) -> str:
        table, key = argument.split(",", 1)
        condition = " and ".join(f"x.{name} = each.{name}" for name, _ in _columns(key)[1])
        found = f"{PostgresDialect._each(key)} {{lookup({table} x, {condition})}}"
        return f"{{schema}}{table}.ctid = any(array(select x.tid from {found}))"

    @staticmethod
    def _age_shift(run: str) -> str:
        """Return the stored shift, found by a pattern: a cast to jsonb would fail if the options are corrupt."""
        return f"""coalesce(cast(substring({run}.options, '"age".[[](-?[0-9]+)') as bigint), 0)"""

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

    @staticmethod
    def _indexed_by(argument: str) -> str:  # noqa: ARG004 - PostgreSQL has no hints
        return ""

    @staticmethod
    def _check(argument: str) -> str:
        table, name, condition = argument.split(",", 2)
        name = f"holdfast_{table}_{name.strip()}"
        return f"alter table {{schema}}{table} add constraint {name} check ({condition.strip()}) not valid"

    def number_parameters(self, text: str, names: tuple[str, ...]) -> str:
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        return PARAMETER.sub(lambda match: numbers[match[1]], text)


class SqliteDialect(Dialect):
    """SQLite as bundled with apsw. Table names have a prefix because users may keep tables in the same file."""

    name = "sqlite"
    notifies = False
    single_writer = True

    _schema = "holdfast_"
    _in_schema = ""
    _now = "coalesce(:now, cast(unixepoch('now', 'subsec') * 1000000 as integer))"
    _stamp = _clock = _now  # SQLite evaluates it once per statement
    _lock = _lock_skip_locked = _lock_shared = _lock_exclusive = ""
    _uuid = "text"
    _serial = "integer primary key autoincrement"
    _run_key = "seq integer primary key autoincrement, id text not null unique"
    _clustered = "without rowid"
    _old_snapshot = "1 = 0"
    _notify_workers = _notify_clients = _notify_followers = "null"

    @staticmethod
    def _replace_view(name: str) -> str:
        return f"drop view {{schema}}{name};\ncreate view {{schema}}{name}"

    @staticmethod
    def _each(argument: str) -> str:
        source, columns = _columns(argument)
        picked = ", ".join(f"value ->> '{name}' as {name}" for name, _ in columns)
        return f"(select {picked} from jsonb_each({source})) as each"

    @staticmethod
    def _notify_other_clients(argument: str) -> str:  # noqa: ARG004 - nothing is notified
        return "null"

    @staticmethod
    def _acting_session(argument: str) -> str:  # noqa: ARG004 - nothing is notified
        return "null"

    @staticmethod
    def _each_text(argument: str) -> str:
        return f"json_each(case when json_valid({argument}) then {argument} end) as each"

    @staticmethod
    def _raw(argument: str) -> str:
        kinds = (f"when '{kind}' then char(1) || '{kind[0]}' || hex({argument})" for kind in ("text", "blob"))
        return f"case typeof({argument}) {' '.join(kinds)} else {argument} end"

    @staticmethod
    def _error_text(argument: str) -> str:
        stored = f"case when json_valid({argument}) then {argument} end"
        parts = (f"coalesce(({stored}) ->> '{part}', '')" for part in ("code", "type", "message"))
        return "(" + " || char(10) || ".join(parts) + ")"

    @staticmethod
    def _members(argument: str) -> str:
        name, value = [part.strip() for part in argument.split(",")]
        return f"group_concat(json_quote({name}) || char(58) || {value}, char(44))"

    @staticmethod
    def _id_list(argument: str) -> str:
        id, condition = [part.strip() for part in argument.split(",")]
        return f"json_group_array({id}) filter (where {condition})"

    @staticmethod
    def _among(argument: str) -> str:
        source, column = [part.strip() for part in argument.split(",")]
        if not source.startswith(":"):
            return f"in (select {column} from {source})"
        return f"in (select value ->> '{column.split()[0]}' from jsonb_each({source}))"

    @staticmethod
    def _matching(argument: str) -> str:  # noqa: ARG004 - the join already compares the column
        """Return a condition that is always true: with `in`, SQLite would scan the whole batch for each row."""
        return "is not null"

    @staticmethod
    def _lookup(argument: str) -> str:
        """Return a join that SQLite executes in the order in which it is written."""
        table, condition, *index = argument.split(",")
        hint = f" indexed by {index[0].strip()}" if index else ""
        return f"cross join {{schema}}{table}{hint} on {condition.strip()}"

    @staticmethod
    def _is_row(argument: str) -> str:
        table, columns = argument.split(",")
        name, alias = table.split()
        return " and ".join(f"{{schema}}{name}.{column} = {alias}.{column}" for column in columns.split())

    @staticmethod
    def _among_keys(argument: str) -> str:
        source, columns = _columns(argument.split(",", 1)[1])
        names = ", ".join(name for name, _ in columns)
        values = ", ".join(f"value ->> '{name}'" for name, _ in columns)
        return f"({names}) in (select {values} from jsonb_each({source}))"

    @staticmethod
    def _age_shift(run: str) -> str:
        return f"coalesce(case when json_valid({run}.options) then {run}.options ->> '$.age[0]' end, 0)"

    @staticmethod
    def _name_lock(argument: str) -> str:
        return argument  # a SQLite transaction that writes is the only one

    @staticmethod
    def _storage(argument: str) -> str:  # noqa: ARG004 - SQLite updates rows in place
        return ""

    @staticmethod
    def _indexed_by(argument: str) -> str:
        return f"indexed by {argument}"

    @staticmethod
    def _check(argument: str) -> str:  # noqa: ARG004 - SQLite can't add a constraint to a table
        return ""

    @staticmethod
    def _time(argument: str) -> str:
        return f"strftime('%Y-%m-%d %H:%M:%f', {argument} / 1000000.0, 'unixepoch')"

    def number_parameters(self, text: str, names: tuple[str, ...]) -> str:  # noqa: ARG002 - SQLite accepts names

        return text
