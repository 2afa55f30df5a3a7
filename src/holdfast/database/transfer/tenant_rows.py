"""The rows of one tenant: take them out of their tables into tables of their own, and put them back (decision 67).

The tables `moving_runs` and so on have the columns of `runs` and so on. They exist only during a move. What is in them
is out of reach of workers, background loops, operators and clients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from holdfast.database.base import Database, DatabaseConnection, Row
from holdfast.database.dialect import TURN_STEP
from holdfast.database.statements import Statement, StatementSource, render
from holdfast.database.transfer.tables import TableCopy, TransferTable

PREFIX = "moving_"
LANES = TransferTable(f"{PREFIX}lanes", ("id",))
"""The lanes of the moving runs, as they are numbered in the source."""
_LIMIT_TARGET = "limit:"
"""How the target of a step's wait for a limit begins; the counter follows."""


class StillRunning(Exception):
    """Workers are executing runs of the tenant."""


class SharedTree(Exception):
    """A run of the tenant has a parent or a child of another tenant."""


class UnknownLane(Exception):
    """A run is in a lane that doesn't exist."""


class TenantTable(NamedTuple):
    """A table with rows of tenants. `rows`: the condition for those of one tenant; `@runs@` are its runs."""

    name: str
    key: tuple[str, ...]
    rows: str
    numbered: str | None = None
    """The column that the database numbers anew when the rows are put back."""

    @property
    def moving(self) -> TransferTable:
        return TransferTable(PREFIX + self.name, self.key)


_OF_TENANT = "tenant = cast(:tenant as text)"
_OF_RUN = "run in (@runs@)"
_OF_COUNTER = (
    "(run in (@runs@) or (per = 'tenant' and key = cast(:tenant as text))"
    " or (per = 'tree' and key in (select cast(moved.id as text) from (@runs@) moved)))"
)
TENANT_TABLES = tuple(
    TenantTable(name, tuple(key.split()), rows, *numbered)
    for name, key, rows, *numbered in (
        ("keys", "scope key", "substr(scope, 1, length(cast(:scope as text))) = cast(:scope as text)"),
        ("events", "target", _OF_TENANT),
        ("runs", "id", _OF_TENANT, "seq"),
        ("edges", "needs node", "needs in (@runs@)"),
        ("metadata", "run name", _OF_RUN),
        ("run_values", "run name", _OF_RUN),
        ("waits", "run generation key", _OF_RUN),
        ("listeners", "run inbox", _OF_RUN),
        ("messages", "run n", _OF_RUN),
        ("checkpoints", "run generation n", _OF_RUN),
        ("history", "run n", _OF_RUN),
        ("chunks", "run n", _OF_RUN),
        ("logs", "run fence n", _OF_RUN),
        ("budget_totals", "counter", _OF_COUNTER),
        ("publications", "id", _OF_TENANT),
        ("schedules", "name", "name {among(:schedules, name text)}"),
        ("slots", "id", "schedule {among(:schedules, name text)}", "id"),
        ("langgraph_checkpoints", "thread tenant ns id", _OF_TENANT),
        ("langgraph_values", "thread tenant ns channel version", _OF_TENANT),
        ("langgraph_writes", "thread tenant ns id task n", _OF_TENANT),
    )
)
"""In the order in which transactions lock rows: keys, events, runs, then what belongs to locked runs."""
NOT_OF_TENANTS = {
    "meta": "describes the tables themselves",
    "lanes": "found or created in the target by queue and task",
    "retired_lanes": "as lanes",
    "tallies": "statistics by lane, of all tenants",
    "queues": "settings of operators for all tenants",
    "pauses": "the pause of the tenant is kept with the state of the move",
    "limit_settings": "declared by code",
    "limits": "no permit is in use by a tenant of which nothing runs; counters are created when they are needed",
    "step_permits": "as limits",
    "budgets": "declared by code",
    "polls": "of triggers, which code declares",
    "subscriptions": "declared by code",
    "audit": "what operators did in this database stays in it",
    "tokens": "give access to one dashboard; create new ones for the other",
    "logins": "as tokens",
    "workers": "serve all tenants",
    "watchers": "clients that wait for results, which register again within seconds",
}
MOVING_TABLES = (*(table.moving for table in TENANT_TABLES), LANES)
_LIVE_RUNS = "select id from {schema}runs where tenant = cast(:tenant as text)"
_MOVING_RUNS = f"select id from {{schema}}{PREFIX}runs"


class TenantRows:
    """The rows of one tenant in one database. All methods join the caller's transaction."""

    def __init__(self, database: Database, connection: DatabaseConnection, tenant: str) -> None:
        self._database = database
        self._connection = connection
        self._tenant = tenant
        self._schedules = "[]"

    # Look at them

    def count(self) -> dict[str, int]:
        """Count the rows that would be taken out, by table."""
        self._find_schedules()
        return {table.name: self._number(f"{{schema}}{table.name} where {table.rows}") for table in TENANT_TABLES}

    def exist(self) -> bool:
        """Return whether the tenant has any data."""
        self._find_schedules()
        found = (
            self._run(f"select 1 from {{schema}}{table.name} where {table.rows} limit 1") for table in TENANT_TABLES
        )
        return any(found)

    def running(self) -> int:
        """Count the runs whose code may be executing."""
        return self._number(f"{{schema}}runs where session is not null and {_OF_TENANT}")

    def states(self, *, are_moving: bool) -> dict[str, int]:
        """Count the runs by state."""
        table = f"{PREFIX}runs" if are_moving else "runs"
        text = f"select state, count(*) from {{schema}}{table} where {_OF_TENANT} group by state order by state"
        return dict(self._run(text))

    def shared_run(self) -> str | None:
        """Return a run of the tenant with a parent or a child that isn't of this tenant, if there is one."""
        found = self._run(
            "select r.id from {schema}runs r join {schema}runs p on p.id = r.parent"
            " where r.tenant = cast(:tenant as text) and coalesce(p.tenant, '') <> r.tenant limit 1"
        ) or self._run(
            "select r.id from {schema}runs r join {schema}runs c on c.parent = r.id"
            " where r.tenant = cast(:tenant as text) and coalesce(c.tenant, '') <> r.tenant limit 1"
        )
        return str(found[0][0]) if found else None

    # Take them out

    def create_tables(self) -> None:
        """Create the tables of a move, empty."""
        for table in TENANT_TABLES:
            live = TableCopy.of(TransferTable(table.name, table.key), self._database, self._connection)
            columns = ", ".join(f"{name} {kind}" for name, kind in live.column_types.items())
            key = ", ".join(table.key)
            self._script(f"create table {{schema}}{table.moving.name} ({columns}, primary key ({key}))")
        columns = "id bigint primary key, queue text not null, task text not null, limited smallint not null"
        self._script(f"create table {{schema}}{LANES.name} ({columns}, shift bigint not null)")

    def drop_tables(self) -> None:
        for table in MOVING_TABLES:
            self._script(f"drop table if exists {{schema}}{table.name}")

    def take_out(self) -> None:
        """Take all rows of the tenant out of the live tables.

        Raise StillRunning, SharedTree or UnknownLane, after which the caller rolls back.
        """
        self._wait_for_locks()
        self._find_schedules()
        self.create_tables()
        for table in TENANT_TABLES:
            if table.name == "runs":
                self._lock_runs()
            self._insert(table)
            if table.name in ("keys", "events"):
                self._delete(table)
            if table.name == "runs":
                self._insert_lanes()
                if self._database.dialect.name == "postgres":
                    self._script(f"analyze {{schema}}{table.moving.name}")
        for table in TENANT_TABLES:
            if table.name not in ("keys", "events"):
                self._delete(table)

    def _lock_runs(self) -> None:
        self._run(
            f"select count(*) from (select 1 from {{schema}}runs where {_OF_TENANT} order by seq {{lock}}) locked"
        )
        if self.running():
            raise StillRunning
        shared = self.shared_run()
        if shared is not None:
            raise SharedTree(shared)

    def _insert(self, table: TenantTable) -> None:
        names = ", ".join(TableCopy.of(table.moving, self._database, self._connection).column_names)
        target = f"insert into {{schema}}{table.moving.name} ({names})"
        self._run(f"{target} select {names} from {{schema}}{table.name} where {table.rows}", are_moving=True)

    def _delete(self, table: TenantTable) -> None:
        self._run(f"delete from {{schema}}{table.name} where {table.rows}", are_moving=True)

    def _insert_lanes(self) -> None:
        used = f"select distinct lane from {{schema}}{PREFIX}runs"
        head = f"insert into {{schema}}{LANES.name} (id, queue, task, limited, shift)"
        self._run(f"{head} select id, queue, task, limited, 0 from {{schema}}lanes where id in ({used})")
        self._run(
            f"{head} select id, queue, task, 0, 0 from {{schema}}retired_lanes where id in ({used})"
            f" and id not in (select id from {{schema}}{LANES.name})"
        )
        lost = self._run(
            f"select id from {{schema}}{PREFIX}runs where lane not in (select id from {{schema}}{LANES.name}) limit 1"
        )
        if lost:
            raise UnknownLane(str(lost[0][0]))

    def _find_schedules(self) -> None:
        """Find the schedules that were created at run time for the tenant. Those that code declares stay with it."""
        found = self._run("select name, template from {schema}schedules where app = '' and template is not null")
        names = [name for name, template in found if _tenant_of(template) == self._tenant]
        self._schedules = msgspec.json.encode([{"name": name} for name in names]).decode()

    # Put them back

    def obstacle(self) -> str | None:
        """Return what keeps the moving rows from being put back: a schedule or a run with the same name."""
        schedules = self._run(
            f"select name from {{schema}}{PREFIX}schedules where name in (select name from {{schema}}schedules) limit 1"
        )
        if schedules:
            return f"a schedule named {schedules[0][0]!r}: rename or delete it"
        runs = self._run(f"select m.id from {{schema}}{PREFIX}runs m join {{schema}}runs r on r.id = m.id limit 1")
        return f"a run {runs[0][0]} of another tenant: is it a copy of the source?" if runs else None

    def add_lanes(self) -> None:
        """Create the lanes of the moving runs and schedules, as an enqueue does: in a transaction before `put_back`."""
        for source in (LANES.name, f"{PREFIX}schedules"):
            self._run(
                f"insert into {{schema}}lanes (queue, task) select distinct queue, task from {{schema}}{source}"
                " where queue is not null order by queue, task"
                " on conflict (queue, task) do update set unused_since = null"
            )

    def put_back(self, paused_by: str | None) -> None:
        """Insert the rows into the live tables, with new numbers, and empty the tables of the move.

        Runs keep their order. None of them names a session or holds a permit; those that waited for a permit try again.
        Workers may claim them after the commit, unless `paused_by` is set.
        """
        self._wait_for_locks()
        self._set_turns()
        for table in TENANT_TABLES:
            copy = TableCopy.of(table.moving, self._database, self._connection)
            names = [name for name in copy.column_names if name != table.numbered]
            columns = ", ".join(names)
            if table.name == "runs":
                source = self._runs_to_put_back(names)
            else:
                order = table.numbered or ", ".join(table.key)
                source = f"select {columns} from {{schema}}{table.moving.name} order by {order}"
            self._run(f"insert into {{schema}}{table.name} ({columns}) {source}")
        if paused_by is None:
            self.resume()
        else:
            self.pause(paused_by)
        self._mark_lanes()
        self._wake_waiting()
        self._run("select {notify_workers}")
        for moving in MOVING_TABLES:
            self._run(f"delete from {{schema}}{moving.name}")

    def _runs_to_put_back(self, names: list[str]) -> str:
        held = (
            "case when m.held <> 'full' and substr(m.held, 1, 7) <> 'tenant:' then m.held"
            " when m.held is null then null when m.paused_at is not null then 'paused'"
            " when m.isolation is not null then 'isolated' end"
        )
        changed = {
            "lane": "l.id",
            "session": "null",
            "parked_on": "null",
            "held": held,
            "turn": "case when m.state = 'ready' and m.turn > 0 then m.turn + k.shift else m.turn end",
        }
        values = ", ".join(changed.get(name, f"m.{name}") for name in names)
        return (
            f"select {values} from {{schema}}{PREFIX}runs m join {{schema}}{LANES.name} k on k.id = m.lane"
            " join {schema}lanes l on l.queue = k.queue and l.task = k.task order by m.seq"
        )

    def _set_turns(self) -> None:
        """Let the tenant start at the head of its fair queues, like one that has just enqueued its first runs."""
        lowest = self._run(
            f"select k.queue, min(m.turn) from {{schema}}{PREFIX}runs m join {{schema}}{LANES.name} k on k.id = m.lane"
            " where m.state = 'ready' and m.turn > 0 group by k.queue"
        )
        for queue, turn in lowest:
            ((head,),) = self._run(
                "select min((select r.turn from {schema}runs r where r.lane = l.id and r.state = 'ready'"
                " and r.held is null order by r.priority desc, r.turn, r.seq limit 1))"
                " from {schema}lanes l where l.queue = cast(:queue as text)",
                queue=queue,
            )
            first = max(int(head or 0) - TURN_STEP, 0) + TURN_STEP
            self._run(
                f"update {{schema}}{LANES.name} set shift = cast(:shift as bigint) where queue = cast(:queue as text)",
                queue=queue,
                shift=first - int(turn),
            )

    def _mark_lanes(self) -> None:
        self._run(
            "update {schema}lanes set limited = 1 where limited = 0 and exists (select 1 from {schema}" + LANES.name +
            " k where k.limited = 1 and k.queue = {schema}lanes.queue and k.task = {schema}lanes.task)"
        )  # fmt: skip

    def _wake_waiting(self) -> None:
        """Let timers check soon the limits and budgets for which steps of the moving runs wait."""
        targets = self._run(
            f"select distinct target from {{schema}}{PREFIX}waits where eager = 2 and outcome is null order by target"
        )
        for (target,) in targets:
            place = str(target).removeprefix(_LIMIT_TARGET)
            if place != target:
                self._run(
                    "insert into {schema}limits (place, name, look_at, steps, touched_at)"
                    " values (:place, :name, {now}, 1, {now})"
                    " on conflict (place) do update set steps = 1, look_at = {now}",
                    place=place,
                    name=_limit_of(place),
                )
        self._run(
            "update {schema}budgets set check_at = {now} where name in"
            f" (select name from {{schema}}{PREFIX}budget_totals where waiting = 1)"
        )

    # Pause the tenant

    def pause(self, by: str) -> None:
        """Let workers claim no run of the tenant."""
        self._run(
            "insert into {schema}pauses (kind, name, paused_at, paused_by) values ('tenant', :tenant, {now}, :by)"
            " on conflict (kind, name) do update set resuming = 0",
            by=by,
        )

    def resume(self) -> None:
        """Let workers claim runs of the tenant again. Timers release those that were held."""
        self._run("update {schema}pauses set resuming = 1 where kind = 'tenant' and name = :tenant")

    def paused_by(self) -> str | None:
        """Return who has paused the tenant; None if it isn't paused."""
        found = self._run(
            "select coalesce(paused_by, '') from {schema}pauses"
            " where kind = 'tenant' and name = :tenant and resuming = 0"
        )
        return str(found[0][0]) if found else None

    def forget_pause(self) -> None:
        self._run("delete from {schema}pauses where kind = 'tenant' and name = :tenant")

    # Statements

    def _wait_for_locks(self) -> None:
        """Let statements of this transaction take as long as they need."""
        if self._database.dialect.name == "postgres":
            self._run("select set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)")

    def _number(self, source: str) -> int:
        return int(self._run(f"select count(*) from {source}")[0][0])

    def _run(self, text: str, *, are_moving: bool = False, **values: Any) -> list[Row]:
        runs = _MOVING_RUNS if are_moving else _LIVE_RUNS
        statement = _statement(self._database, text.replace("@runs@", runs))
        scope = msgspec.json.encode([self._tenant]).decode()[:-1] + ","
        given = {"tenant": self._tenant, "scope": scope, "schedules": self._schedules, "now": None, **values}
        return self._connection.execute(statement, {name: given[name] for name in statement.parameters})

    def _script(self, text: str) -> None:
        self._connection.execute_script(self._database.dialect.fill(text))


def _tenant_of(template: str) -> str | None:
    """Return the tenant of what a schedule enqueues; None also if another program has corrupted it."""
    try:
        return msgspec.json.decode(template, type=_Template).tenant
    except msgspec.MsgspecError:
        return None


class _Template(msgspec.Struct):
    tenant: str | None = None


def _limit_of(place: str) -> str:
    """Return the name of the limit of a counter."""
    try:
        return msgspec.json.decode(place, type=tuple[str, str])[0]
    except msgspec.MsgspecError:
        return place


def _statement(database: Database, text: str) -> Statement:
    return render(StatementSource("tenant", None, "", text), database.dialect)
