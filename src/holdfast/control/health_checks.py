"""Health checks: turn facts about a database, its workers and its runs into findings. Pure functions without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.control.pauses import PauseInfo
from holdfast.control.tasks import TaskInfo
from holdfast.control.workers import WorkerInfo
from holdfast.model.clock import MICROS_PER_SECOND, format_duration
from holdfast.model.labels import ANY_VALUE, format_labels
from holdfast.model.names import counted
from holdfast.store.admin import FileFacts, ServerFacts, SnapshotHolder, TableBloat
from holdfast.store.rows import LostWorker

CLOCK_SKEW_NOTE_S, CLOCK_SKEW_WRONG_S = 2.0, 60.0
MAX_SNAPSHOT_AGE_S = 300.0
MAX_DEAD_ROWS = 100_000
MAX_CONNECTION_SHARE = 0.8
MAX_NOTIFY_QUEUE_SHARE = 0.4
CONNECTIONS_PER_WORKER = 3
MAX_WRITE_S = 1.0
MAX_WAL_BYTES = 512 * 2**20
MAX_FREE_BYTES = 256 * 2**20
MAX_DELAY_S = 60.0
MAX_RUNS = 20
"""How many runs of a lost worker a finding has."""
MAX_NAMES = 5

MANY_RUNS = 100_000
MAX_EXPIRED = 50_000
"""Expired runs that aren't deleted: workers delete 500 at a time, without pause."""


class LongWait(NamedTuple):
    """A wait without a timeout that lasts long. `what`: what it waits for."""

    run: str
    task: str
    what: str
    seconds: float


class Finding(msgspec.Struct, frozen=True):
    """A problem with its meaning and remedy."""

    code: str
    level: Literal["wrong", "note"]
    """`wrong`: something fails or will fail soon. `note`: it works, but the operator should know."""
    what: str
    means: str
    do: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)


def check_tables(version: int, newest: int) -> Iterator[Finding]:
    """Compare the schema version with the code's."""
    if version == 0:
        yield Finding(
            "schema", "wrong", "the database has no Holdfast tables",
            "nothing has been enqueued here, or this is not the intended database",
            "run `holdfast migrate`, or check the URL and the schema name",
        )  # fmt: skip
    elif version < newest:
        yield Finding(
            "schema", "wrong", f"the schema has version {version}, this release needs version {newest}",
            "apps that run with migrate=False refuse to start until the schema is migrated",
            "run `holdfast migrate`", {"version": version, "newest": newest},
        )  # fmt: skip


def check_clocks(difference: float) -> Iterator[Finding]:
    """Check the clock skew. `difference`: seconds by which the server's clock is ahead of this machine's."""
    if abs(difference) < CLOCK_SKEW_NOTE_S:
        return
    way = "ahead of" if difference > 0 else "behind"
    yield Finding(
        "clock", "wrong" if abs(difference) >= CLOCK_SKEW_WRONG_S else "note",
        f"the database server's clock is {abs(difference):.1f} s {way} this machine's clock",
        "leases, sleeps and schedules use the server's clock and are correct; run ids use this machine's clock, so"
        " lists are not in order of time and log timestamps disagree",
        "synchronize both clocks with NTP or chrony", {"seconds": round(difference, 3)},
    )  # fmt: skip


def check_server(facts: ServerFacts, workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Check the settings and the state of a PostgreSQL server."""
    alive = sum(worker.state != "dead" for worker in workers)
    if facts.standby:
        yield Finding(
            "standby", "wrong", "this server is a read-only standby",
            "nothing can be enqueued or run here", "use the URL of the primary",
        )  # fmt: skip
    unsafe = [name for name in ("fsync", "synchronous_commit", "full_page_writes") if getattr(facts, name) == "off"]
    if unsafe:
        yield Finding(
            "durability", "wrong", f"{', '.join(unsafe)} {'is' if len(unsafe) == 1 else 'are'} off",
            "committed results can be lost in a server crash, and their runs are repeated",
            f"set {', '.join(f'{name} = on' for name in unsafe)} in postgresql.conf", {"settings": unsafe},
        )  # fmt: skip
    if facts.autovacuum == "off":
        yield Finding(
            "autovacuum", "wrong", "autovacuum is off",
            "dead rows accumulate, and claims get slower with every run",
            "set autovacuum = on in postgresql.conf",
        )  # fmt: skip
    if facts.connections >= facts.max_connections * MAX_CONNECTION_SHARE:
        yield Finding(
            "connections", "wrong", f"{facts.connections} of {facts.max_connections} connections are in use",
            "without free connections workers can't renew their leases, and other workers start their runs again",
            "close unneeded connections, raise max_connections, or use pgbouncer",
            {"connections": facts.connections, "max_connections": facts.max_connections},
        )  # fmt: skip
    elif alive * CONNECTIONS_PER_WORKER > facts.max_connections:
        yield Finding(
            "connections", "wrong",
            f"{counted(alive, 'worker')} may open {alive * CONNECTIONS_PER_WORKER} connections,"
            f" max_connections is {facts.max_connections}",
            "under load some connections will be refused",
            "raise max_connections, or run fewer worker processes with more concurrency",
            {"workers": alive, "max_connections": facts.max_connections},
        )  # fmt: skip
    yield from _check_listeners(facts, alive)


def _check_listeners(facts: ServerFacts, alive: int) -> Iterator[Finding]:
    if facts.listeners < alive:
        yield Finding(
            "listener", "wrong", f"only {facts.listeners} of {alive} running workers listen for notifications",
            "the others find new runs only by polling, up to seconds later",
            "expected with pgbouncer in transaction mode; otherwise check the logs of the workers",
            {"workers": alive, "listeners": facts.listeners},
        )  # fmt: skip
    if facts.notifications > MAX_NOTIFY_QUEUE_SHARE:
        yield Finding(
            "notifications", "wrong", f"the server's notification queue is {facts.notifications:.0%} full",
            "a listening session keeps a transaction open; once the queue is full, commits that notify fail",
            "end that session; it is among the oldest transactions in pg_stat_activity",
            {"usage": facts.notifications},
        )  # fmt: skip


def check_holders(holders: Sequence[SnapshotHolder]) -> Iterator[Finding]:
    """Find old snapshots, which prevent vacuum from removing dead rows."""
    for holder in holders:
        if holder.took is not None and holder.took < MAX_SNAPSHOT_AGE_S * MICROS_PER_SECOND:
            continue
        age = None if holder.took is None else round(holder.took / MICROS_PER_SECOND)
        yield Finding(
            "snapshot", "wrong", _describe_holder(holder, age),
            "vacuum can't remove rows that died since then: tables and indexes grow, and claims get slower",
            _holder_remedy(holder),
            {"kind": holder.kind, "pid": holder.pid, "application": holder.name, "user": holder.user, "seconds": age,
             "state": holder.doing, "query": holder.query},
        )  # fmt: skip


def _describe_holder(holder: SnapshotHolder, age: int | None) -> str:
    if holder.kind == "prepared":
        return f"the prepared transaction {holder.name} of {holder.user} has been open for {age:,} s"
    if holder.kind == "slot":
        return f"the {holder.doing} replication slot {holder.name} holds an old snapshot"
    session = f"pid {holder.pid} ({holder.name or 'no application name'}, user {holder.user})"
    return (
        f"{session} has kept a transaction open for {age:,} s, {holder.doing}: {' '.join((holder.query or '').split())}"
    )


def _holder_remedy(holder: SnapshotHolder) -> str:
    if holder.kind == "prepared":
        return f"commit it, or ROLLBACK PREPARED '{holder.name}'"
    if holder.kind == "slot":
        return f"let its standby catch up, or call pg_drop_replication_slot('{holder.name}')"
    return f"let that program commit, or terminate it: select pg_terminate_backend({holder.pid})"


def check_bloat(tables: Sequence[TableBloat]) -> Iterator[Finding]:
    """Find tables with more dead rows than live rows."""
    for table in tables:
        if table.dead >= MAX_DEAD_ROWS and table.dead > table.live:
            vacuumed = "never" if table.cleaned is None else f"{table.cleaned // MICROS_PER_SECOND:,} s ago"
            yield Finding(
                "bloat", "wrong",
                f"table {table.table} has {table.dead:,} dead and {table.live:,} live rows, last vacuum: {vacuumed}",
                "reads scan the dead rows and get slower",
                f"look for old snapshots first, then VACUUM {table.table}; tune autovacuum to run more often",
                {"table": table.table, "dead": table.dead, "live": table.live},
            )  # fmt: skip


def check_file(facts: FileFacts) -> Iterator[Finding]:
    """Check a SQLite file."""
    if facts.journal_mode not in ("wal", "memory"):
        yield Finding(
            "journal", "wrong", f"the journal mode of the file is {facts.journal_mode}, not wal",
            "readers and the writer block each other; network file systems don't support WAL",
            "put the file on a local disk", {"journal_mode": facts.journal_mode},
        )  # fmt: skip
    if facts.lost_processes:
        yield Finding(
            "replaced", "wrong", f"the file or its write-ahead log was deleted or replaced while {_processes(facts)}"
            " had it open",
            "their commits are invisible to other processes and lost when they exit; Holdfast processes notice it at"
            " the next write and stop",
            "stop all programs that use the file, restore it with its -wal file if it was moved, and start them again",
            {"processes": list(facts.lost_processes)},
        )  # fmt: skip
    if facts.writer is not None and facts.writer[1] > MAX_WRITE_S:
        pid, seconds = facts.writer
        yield Finding(
            "writer", "note", f"process {pid} has kept a transaction open for {seconds:.1f} s",
            "all other writers wait for it; Holdfast rolls it back after five seconds",
            "move slow work out of app.transaction() and ctx.transaction",
            {"process": pid, "seconds": round(seconds, 1)},
        )  # fmt: skip
    if facts.wal_size > MAX_WAL_BYTES:
        yield Finding(
            "wal", "wrong", f"the size of the write-ahead log is {facts.wal_size / 2**20:,.0f} MB",
            "a process keeps a read transaction open, so the log can't be checkpointed",
            "find the process that has the file open (lsof) and end its transaction", {"bytes": facts.wal_size},
        )  # fmt: skip
    if facts.free > MAX_FREE_BYTES and facts.free * 2 > facts.size:
        yield Finding(
            "free", "note", f"{facts.free / 2**20:,.0f} of the file's {facts.size / 2**20:,.0f} MB are free",
            "no problem: new runs will use the space",
            "to return it to the file system, stop the workers and run VACUUM on the file",
            {"bytes": facts.size, "free": facts.free},
        )  # fmt: skip
    if facts.mode is not None and facts.mode & 0o077:
        yield Finding(
            "permissions", "note", f"other users may open the file (mode {facts.mode:o})",
            "users of this machine can read or change arguments and results of runs",
            "chmod 600 the file, unless it is meant to be shared", {"mode": f"{facts.mode:o}"},
        )  # fmt: skip


def _processes(facts: FileFacts) -> str:
    shown = ", ".join(map(str, facts.lost_processes[:MAX_NAMES]))
    return f"process {shown}" if len(facts.lost_processes) == 1 else f"processes {shown}"


def check_workers(workers: Sequence[WorkerInfo], ready: int, overdue: float) -> Iterator[Finding]:
    """Find runs that make no progress. `overdue`: seconds by which the first scheduled run is late."""
    alive = [worker for worker in workers if worker.state != "dead"]
    dead = [worker for worker in workers if worker.state == "dead" and worker.runs]
    if dead and not alive:
        count = sum(worker.runs for worker in dead)
        yield Finding(
            "stuck", "wrong", f"dead workers hold {counted(count, 'run')}, and no worker is running to recover them",
            "nothing happens until a worker starts", "start a worker: holdfast worker",
            {"workers": [worker.name for worker in dead], "runs": count},
        )  # fmt: skip
    for worker in dead if alive else ():
        if worker.lease_left < -MAX_DELAY_S:
            yield Finding(
                "stuck", "wrong",
                f"worker {worker.name} has been dead for {-worker.lease_left:,.0f} s"
                f" and still holds {counted(worker.runs, 'run')}",
                "other workers should have recovered them", "check the logs of the running workers",
                {"worker": worker.session, "runs": worker.runs},
            )  # fmt: skip
    if ready and not alive:
        yield Finding(
            "no_worker", "wrong", f"{counted(ready, 'run')} ready, but no worker is running",
            "nothing runs", "start a worker: holdfast worker", {"ready": ready},
        )  # fmt: skip
    if alive and overdue > MAX_DELAY_S:
        yield Finding(
            "overdue", "wrong", f"a scheduled run is {overdue:,.0f} s late",
            "the timer loops of the running workers don't make progress",
            "check their logs, and look for locks in the database", {"seconds": round(overdue)},
        )  # fmt: skip


def check_worker_health(workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Find workers that are alive but can't do all their work."""
    for worker in workers:
        if worker.state != "unhealthy":
            continue
        data = {"worker": worker.session, "loop_lag": worker.loop_lag, "lost_threads": worker.lost_threads}
        if worker.loop_lag:
            yield Finding(
                "blocked_loop", "wrong", f"worker {worker.name} is stuck: {worker.problem} for {worker.loop_lag:.0f} s",
                "it claims nothing and its coroutines make no progress; after one lease it releases its runs",
                "use async I/O in `async def` tasks, or make them `def` tasks, which run in threads", data,
            )  # fmt: skip
        else:
            yield Finding(
                "lost_threads", "wrong", f"worker {worker.name} is running out of threads: {worker.problem}",
                "their runs continue elsewhere, but a lost thread remains until its code returns or the process exits",
                "give blocking calls (sockets, locks, subprocesses) a timeout of their own; restart the worker", data,
            )  # fmt: skip


def check_lost_workers(lost: Sequence[tuple[datetime, LostWorker]], hours: int) -> Iterator[Finding]:
    """Say which workers were lost lately, and what became of their runs. `lost`: the last first."""
    if not lost:
        return
    requeued, failed = sum(each.requeued for _, each in lost), sum(each.failed for _, each in lost)
    runs = f"{counted(requeued, 'run')} requeued" + (f", {counted(failed, 'run')} failed as crashed" if failed else "")
    last = "; ".join(
        f"{each.name or each.session} at {at:%Y-%m-%d %H:%M:%S} UTC" + (" (no database)" if each.excused else "")
        for at, each in lost[:MAX_NAMES]
    )
    yield Finding(
        "lost_workers",
        "note",
        f"{counted(len(lost), 'worker')} lost in the last {hours} hours; {runs}; last: {last}",
        "their leases expired: the process was killed, crashed, was frozen or couldn't reach the database; other"
        " workers have recovered the runs",
        "look in the workers' logs at that time for `worker process ended`, an out-of-memory kill or a stalled loop;"
        " `holdfast workers --lost` lists the recovered runs",
        {
            "workers": [
                {
                    "at": at,
                    "session": each.session,
                    "name": each.name,
                    "requeued": each.requeued,
                    "failed": each.failed,
                    "runs": each.runs[:MAX_RUNS],
                    "failed_runs": each.failed_runs[:MAX_RUNS],
                }
                for at, each in lost
            ]
        },
    )


def check_long_waits(waits: Sequence[LongWait], threshold_s: float) -> Iterator[Finding]:
    """Report waits that nothing but an operator may ever end."""
    for wait in waits:
        yield Finding(
            "long_wait", "note",
            f"a run of {wait.task} has waited for {wait.what} for {format_duration(wait.seconds)}",
            f"the wait has no timeout and is longer than {format_duration(threshold_s)} ($HOLDFAST_LONG_WAIT): what it"
            " waits for may never come",
            f"find out why: holdfast why {wait.run}", {"run": wait.run, "seconds": round(wait.seconds)},
        )  # fmt: skip


def check_lanes(
    ready: Mapping[tuple[str, str], int], workers: Sequence[WorkerInfo], paused: set[str]
) -> Iterator[Finding]:
    """Find ready runs, by queue and task, that no worker would claim."""
    alive = [worker for worker in workers if worker.state != "dead"]
    if not alive:
        return
    for (queue, task), runs in sorted(ready.items()):
        serving = [worker for worker in alive if worker.queues is None or queue in worker.queues]
        if queue in paused:
            yield Finding(
                "paused", "note", f"queue {queue} is paused with {counted(runs, 'ready run')} of {task}",
                "they wait until the queue is resumed", f"holdfast resume {queue}", {"queue": queue, "runs": runs},
            )  # fmt: skip
        elif not serving:
            yield Finding(
                "no_queue", "wrong",
                f"no worker serves queue {queue}, which has {counted(runs, 'ready run')} of {task}",
                "they wait until a worker serves it", f"holdfast worker --queues {queue}",
                {"queue": queue, "runs": runs},
            )  # fmt: skip
        elif not any(worker.tasks is None or task in worker.tasks for worker in serving):
            yield Finding(
                "unknown_task", "wrong",
                f"no worker has the code of task {task}, which has {counted(runs, 'ready run')} in queue {queue}",
                "they wait until a worker has its code: the task may be renamed or not deployed yet",
                "deploy its code, declare the old name in aliases=(…), or cancel the runs:"
                f" holdfast cancel --task {task} --dry-run",
                {"task": task, "queue": queue, "runs": runs},
            )  # fmt: skip
        elif not any(worker.has_labels_for(task) for worker in serving if worker.tasks is None or task in worker.tasks):
            requires = next(worker.requires[task] for worker in serving if task in worker.requires)
            needed = " ".join(
                f"--label {name}={'VALUE' if value == ANY_VALUE else value}" for name, value in requires.items()
            )
            yield Finding(
                "no_label", "wrong",
                f"no worker has the labels {format_labels(requires)}, which task {task} requires; the task has"
                f" {counted(runs, 'ready run')} in queue {queue}",
                "they wait until a worker has them", f"holdfast worker {needed}",
                {"task": task, "queue": queue, "runs": runs, "requires": dict(requires)},
            )  # fmt: skip


def check_pauses(ready: Mapping[tuple[str, str], int], pauses: Sequence[PauseInfo]) -> Iterator[Finding]:
    """Report paused tasks that have ready runs, and paused tenants."""
    by_task: Counter[str] = Counter()
    for (_, task), runs in ready.items():
        by_task[task] += runs
    for pause in pauses:
        if pause.kind == "task" and not by_task[pause.name]:
            continue
        by = f" by {pause.paused_by}" if pause.paused_by else ""
        waiting = f" with {counted(by_task[pause.name], 'ready run')}" if pause.kind == "task" else ""
        yield Finding(
            "paused", "note", f"{pause.kind} {pause.name} is paused{by}{waiting}",
            f"its runs wait until the {pause.kind} is resumed", f"holdfast resume --{pause.kind} {pause.name}",
            {pause.kind: pause.name, "by": pause.paused_by},
        )  # fmt: skip


def check_missing_lanes(runs: Mapping[int, int]) -> Iterator[Finding]:
    """Report unfinished runs in lanes that the lanes table doesn't have."""
    for lane, number in sorted(runs.items()):
        yield Finding(
            "missing_lane", "wrong",
            f"lane {lane} has {counted(number, 'unfinished run')} but is missing from the lanes table",
            "something else changed the tables: queue and task of these runs are unknown, so workers can't claim them"
            " and lists don't show them",
            f"restore the row of lane {lane} from a backup, or delete the runs", {"lane": lane, "runs": number},
        )  # fmt: skip


def check_rows(quarantined: Sequence[str], corrupt: Mapping[str, Sequence[str]], limit: int) -> Iterator[Finding]:
    """Report runs that workers quarantined, and unfinished runs whose rows are corrupt, with the columns."""
    if quarantined:
        number = f"{limit} or more runs" if len(quarantined) >= limit else counted(len(quarantined), "run")
        yield Finding(
            "quarantined", "wrong",
            f"workers quarantined {number} because their rows are corrupt: {_shown(quarantined)}",
            "another program, or a failing disk or memory, changed the table; these runs failed, all others continue",
            "find out what wrote to the tables; `holdfast show` has what was stored; retry the runs, or prune them",
            {"runs": list(quarantined[:MAX_NAMES]), "number": len(quarantined)},
        )  # fmt: skip
    if corrupt:
        columns = sorted({column for columns in corrupt.values() for column in columns})
        yield Finding(
            "corrupt_rows", "wrong",
            f"the rows of {counted(len(corrupt), 'unfinished run')} are corrupt ({', '.join(columns)}):"
            f" {_shown(list(corrupt))}",
            "another program, or a failing disk or memory, changed the table; workers quarantine runs that they can't"
            " handle, the others may stay as they are",
            "find out what wrote to the tables, then cancel these runs or restore their rows from a backup",
            {"runs": list(corrupt)[:MAX_NAMES], "number": len(corrupt), "columns": columns},
        )  # fmt: skip


def _shown(ids: Sequence[str]) -> str:
    return ", ".join(ids[:MAX_NAMES]) + (", …" if len(ids) > MAX_NAMES else "")


def check_retention(stored: int, expired: int, size: int) -> Iterator[Finding]:
    """Tell what it costs to keep finished runs, if they are many, and whether pruning keeps up with their expiry."""
    if stored >= MANY_RUNS:
        yield Finding(
            "retention", "note",
            f"there are about {counted(stored, 'run')} in {size / 1e9:.1f} GB, {size / stored / 1e3:.1f} kB each",
            "finished runs are kept for `keep`: halving it halves this size in the long term, and backups with it",
            "set keep= of the app or of frequent tasks, or keep_by_tenant=, to the time for which you look at runs",
            {"runs": stored, "bytes": size, "expired": expired},
        )  # fmt: skip
    if expired > MAX_EXPIRED:
        yield Finding(
            "pruning", "wrong", f"{counted(expired, 'expired run')} not deleted yet",
            "workers delete expired runs, and can't keep up or don't run; the tables grow",
            "start a worker, or delete them now with `holdfast prune`", {"expired": expired},
        )  # fmt: skip


def check_schedules(unreadable: Mapping[str, str]) -> Iterator[Finding]:
    """Report schedules whose rows can't be read, with the reason."""
    for name, reason in sorted(unreadable.items()):
        yield Finding(
            "unreadable_schedule", "wrong", f"schedule {name} can't be read here: {reason}",
            "a newer release wrote it, or another program changed the table; it creates no runs in workers of this"
            " release",
            "upgrade holdfast, or start a worker whose code declares the schedule, which stores it again",
            {"schedule": name},
        )  # fmt: skip


def check_tasks(tasks: Sequence[TaskInfo]) -> Iterator[Finding]:
    """Find contradictory task settings."""
    for task in tasks:
        if task.timeout is not None and task.deadline is not None and task.timeout >= task.deadline:
            yield Finding(
                "settings", "wrong",
                f"task {task.name} has a timeout of {task.timeout:g} s and a deadline of {task.deadline:g} s",
                "an attempt that times out exceeds the deadline of the run, so it is never retried despite"
                f" max_attempts={task.max_attempts}",
                "set the deadline to a multiple of the timeout", {"task": task.name},
            )  # fmt: skip
