"""What facts mean: from what a database, its workers and its runs are like to findings. Plain functions, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.control.tasks import TaskInfo
from holdfast.control.workers import WorkerInfo
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store.health import Bloat, FileFacts, Holder, ServerFacts

CLOCK_NOTED, CLOCK_WRONG = 2.0, 60.0
"""Seconds by which the clocks of this machine and of the server may differ."""
OLD_SNAPSHOT = 300.0
MANY_DEAD = 100_000
FULL = 0.8
CONNECTIONS_OF_A_WORKER = 5
LONG_WRITE_S = 1.0
LARGE_WAL = 512 * 2**20
MUCH_FREE = 256 * 2**20
OVERDUE = 60.0
SHOWN = 5


class Finding(msgspec.Struct, frozen=True):
    """Something that isn't as it should be."""

    code: str
    level: Literal["wrong", "note"]
    """`wrong`: something doesn't work, or soon won't. `note`: it works, but somebody should know."""
    what: str
    means: str
    do: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)


def of_tables(version: int, newest: int) -> Iterator[Finding]:
    """The schema's version against the code's."""
    if version == 0:
        yield Finding(
            "schema", "wrong", "there are no tables yet",
            "nothing was ever enqueued in this database, or it is another one than you think",
            "run `holdfast migrate`, or check the URL and the schema's name",
        )  # fmt: skip
    elif version < newest:
        yield Finding(
            "schema", "wrong", f"the tables are of version {version}, this code knows {newest}",
            "code of this release refuses to work until they were migrated, if it may not do it itself",
            "run `holdfast migrate`", {"version": version, "newest": newest},
        )  # fmt: skip


def of_clocks(difference: float) -> Iterator[Finding]:
    """`difference`: how many seconds the server's clock is ahead of ours."""
    if abs(difference) < CLOCK_NOTED:
        return
    way = "ahead of" if difference > 0 else "behind"
    yield Finding(
        "clock", "wrong" if abs(difference) >= CLOCK_WRONG else "note",
        f"the clock of the database's server is {abs(difference):.1f} s {way} ours",
        "leases, sleeps and schedules go by the server's clock and are right; ids are made by this machine's clock, so"
        " that lists aren't in the order of time, and logs don't fit together",
        "let NTP or chrony set both clocks", {"seconds": round(difference, 3)},
    )  # fmt: skip


def of_server(facts: ServerFacts, workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """A PostgreSQL server's settings and state."""
    alive = sum(worker.state != "dead" for worker in workers)
    if facts.standby:
        yield Finding(
            "standby", "wrong", "this server is a standby, which takes no writes",
            "nothing can be enqueued or worked on here", "give the URL of the primary",
        )  # fmt: skip
    unsafe = [name for name in ("fsync", "synchronous_commit", "full_page_writes") if getattr(facts, name) == "off"]
    if unsafe:
        yield Finding(
            "durability", "wrong", f"{', '.join(unsafe)} {'is' if len(unsafe) == 1 else 'are'} off",
            "what was recorded as done can be lost when the server crashes, and then happens again",
            f"set {', '.join(f'{name} = on' for name in unsafe)} in postgresql.conf", {"settings": unsafe},
        )  # fmt: skip
    if facts.autovacuum == "off":
        yield Finding(
            "autovacuum", "wrong", "autovacuum is off",
            "dead rows pile up, and claims become slower with every run",
            "set autovacuum = on in postgresql.conf",
        )  # fmt: skip
    if facts.connections >= facts.max_connections * FULL:
        yield Finding(
            "connections", "wrong", f"{facts.connections} of {facts.max_connections} connections are taken",
            "when they are all taken workers can't renew their leases, and their runs are started again by others",
            "close what isn't needed, raise max_connections, or put pgbouncer in front",
            {"connections": facts.connections, "max_connections": facts.max_connections},
        )  # fmt: skip
    elif alive * CONNECTIONS_OF_A_WORKER > facts.max_connections:
        yield Finding(
            "connections", "wrong",
            f"{alive} workers may open {alive * CONNECTIONS_OF_A_WORKER} connections,"
            f" max_connections is {facts.max_connections}",
            "under load some of them will be refused",
            "raise max_connections, or run fewer worker processes with more concurrency",
            {"workers": alive, "max_connections": facts.max_connections},
        )  # fmt: skip
    yield from _of_listeners(facts, alive)


def _of_listeners(facts: ServerFacts, alive: int) -> Iterator[Finding]:
    if facts.listeners < alive:
        yield Finding(
            "listener", "wrong", f"{alive} workers are alive, but only {facts.listeners} of them listen",
            "those that don't hear of new work find it by polling only: it may begin up to seconds later",
            "with pgbouncer in transaction mode that is as it must be; else look into the log of the workers",
            {"workers": alive, "listeners": facts.listeners},
        )  # fmt: skip
    if facts.notifications > FULL / 2:
        yield Finding(
            "notifications", "wrong", f"the server's queue of notifications is {facts.notifications:.0%} full",
            "some session listens and stays in one transaction; when the queue is full, no notifying commit succeeds",
            "end that session: it is among the oldest transactions in pg_stat_activity",
            {"usage": facts.notifications},
        )  # fmt: skip


def of_holders(holders: Sequence[Holder]) -> Iterator[Finding]:
    """Old snapshots: those who keep dead rows from being cleaned up, by name."""
    for holder in holders:
        if holder.took is not None and holder.took < OLD_SNAPSHOT * MICROS_PER_SECOND:
            continue
        age = None if holder.took is None else round(holder.took / MICROS_PER_SECOND)
        yield Finding(
            "snapshot", "wrong", _culprit(holder, age),
            "no row that died since then can be cleaned up: tables and indexes grow, and claims become slower",
            _remedy(holder),
            {"kind": holder.kind, "pid": holder.pid, "application": holder.name, "user": holder.user, "seconds": age,
             "state": holder.doing, "query": holder.query},
        )  # fmt: skip


def _culprit(holder: Holder, age: int | None) -> str:
    if holder.kind == "prepared":
        return f"the prepared transaction {holder.name} of {holder.user} is open for {age:,} s"
    if holder.kind == "slot":
        return f"the {holder.doing} replication slot {holder.name} holds an old snapshot"
    who = f"pid {holder.pid} ({holder.name or 'no application name'}, user {holder.user})"
    return f"{who} has a transaction open for {age:,} s, {holder.doing}: {' '.join((holder.query or '').split())}"


def _remedy(holder: Holder) -> str:
    if holder.kind == "prepared":
        return f"commit it, or ROLLBACK PREPARED '{holder.name}'"
    if holder.kind == "slot":
        return f"let its standby catch up, or pg_drop_replication_slot('{holder.name}')"
    return f"let that program commit, or end it: select pg_terminate_backend({holder.pid})"


def of_bloat(tables: Sequence[Bloat]) -> Iterator[Finding]:
    """Tables with more dead rows than live ones."""
    for table in tables:
        if table.dead >= MANY_DEAD and table.dead > table.live:
            cleaned = "never" if table.cleaned is None else f"{table.cleaned // MICROS_PER_SECOND:,} s ago"
            yield Finding(
                "bloat", "wrong",
                f"table {table.table} has {table.dead:,} dead rows and {table.live:,} live ones, cleaned up {cleaned}",
                "what reads it passes over the dead, and becomes slower",
                f"look for old snapshots first, then VACUUM {table.table}; let autovacuum come more often",
                {"table": table.table, "dead": table.dead, "live": table.live},
            )  # fmt: skip


def of_file(facts: FileFacts) -> Iterator[Finding]:
    """A SQLite file."""
    if facts.journal_mode not in ("wal", "memory"):
        yield Finding(
            "journal", "wrong", f"the file's journal mode is {facts.journal_mode}, not wal",
            "readers and the writer block each other; file systems without shared memory (networks) can't have WAL",
            "keep the file on a local disk", {"journal_mode": facts.journal_mode},
        )  # fmt: skip
    if facts.lost_processes:
        yield Finding(
            "replaced", "wrong", f"the file or its write-ahead log was deleted or replaced while {_processes(facts)}"
            " had it open",
            "what these processes commit is invisible to others and is lost when they end; Holdfast's own processes"
            " notice it at their next write and stop",
            "stop all programs that use the file, put it back together with its -wal file if it was moved, and start"
            " them again", {"processes": list(facts.lost_processes)},
        )  # fmt: skip
    if facts.writer is not None and facts.writer[1] > LONG_WRITE_S:
        pid, seconds = facts.writer
        yield Finding(
            "writer", "note", f"process {pid} has kept a transaction open for {seconds:.1f} s",
            "all other writers of the file wait for it; Holdfast rolls it back after five seconds",
            "do slow work before or after app.transaction() and ctx.transaction, not inside",
            {"process": pid, "seconds": round(seconds, 1)},
        )  # fmt: skip
    if facts.wal_size > LARGE_WAL:
        yield Finding(
            "wal", "wrong", f"the write-ahead log has {facts.wal_size / 2**20:,.0f} MB",
            "some process reads in one long transaction, so that the log can't be put back into the file",
            "find the process that has the file open (lsof) and let it end its transaction", {"bytes": facts.wal_size},
        )  # fmt: skip
    if facts.free > MUCH_FREE and facts.free * 2 > facts.size:
        yield Finding(
            "free", "note", f"{facts.free / 2**20:,.0f} of the file's {facts.size / 2**20:,.0f} MB are free",
            "nothing is lost: new runs will use the room",
            "to give it back, stop the workers and run VACUUM on the file",
            {"bytes": facts.size, "free": facts.free},
        )  # fmt: skip
    if facts.mode is not None and facts.mode & 0o077:
        yield Finding(
            "permissions", "note", f"others than the owner may open the file (mode {facts.mode:o})",
            "arguments and results of runs can be read, or changed, by other users of this machine",
            "chmod 600 the file, unless it is meant to be shared", {"mode": f"{facts.mode:o}"},
        )  # fmt: skip


def _processes(facts: FileFacts) -> str:
    shown = ", ".join(map(str, facts.lost_processes[:SHOWN]))
    return f"process {shown}" if len(facts.lost_processes) == 1 else f"processes {shown}"


def of_workers(workers: Sequence[WorkerInfo], ready: int, overdue: float) -> Iterator[Finding]:
    """Runs that stay where they are. `overdue`: for how many seconds the first scheduled run should have been ready."""
    alive = [worker for worker in workers if worker.state != "dead"]
    dead = [worker for worker in workers if worker.state == "dead" and worker.runs]
    if dead and not alive:
        count = sum(worker.runs for worker in dead)
        yield Finding(
            "stuck", "wrong", f"{count:,} runs belong to workers that are dead, and nobody is there to take them over",
            "they stay as they are until a worker is started", "start a worker: holdfast worker",
            {"workers": [worker.name for worker in dead], "runs": count},
        )  # fmt: skip
    for worker in dead if alive else ():
        if worker.lease_left < -OVERDUE:
            yield Finding(
                "stuck", "wrong",
                f"worker {worker.name} is dead for {-worker.lease_left:,.0f} s and still has {worker.runs:,} runs",
                "the others should have taken them over long ago", "look into the logs of the workers that are alive",
                {"worker": worker.session, "runs": worker.runs},
            )  # fmt: skip
    if ready and not alive:
        yield Finding(
            "no_worker", "wrong", f"{ready:,} runs are ready, and no worker is alive",
            "nothing will be done", "start a worker: holdfast worker", {"ready": ready},
        )  # fmt: skip
    if alive and overdue > OVERDUE:
        yield Finding(
            "overdue", "wrong", f"a scheduled run should have become ready {overdue:,.0f} s ago",
            "the timekeepers of the workers that are alive don't come through",
            "look into their logs, and for locks in the database", {"seconds": round(overdue)},
        )  # fmt: skip


def of_worker_health(workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Find workers that are alive but can't do all their work."""
    for worker in workers:
        if worker.state != "unhealthy":
            continue
        data = {"worker": worker.session, "loop_lag": worker.loop_lag, "lost_threads": worker.lost_threads}
        if worker.loop_lag:
            yield Finding(
                "blocked_loop", "wrong", f"worker {worker.name} is stuck: {worker.problem} for {worker.loop_lag:.0f} s",
                "it claims nothing and its coroutines make no progress; after one lease it hands them back",
                "use async I/O in `async def` tasks, or make them `def` tasks, which run in threads", data,
            )  # fmt: skip
        else:
            yield Finding(
                "lost_threads", "wrong", f"worker {worker.name} is running out of threads: {worker.problem}",
                "their runs continue without them, but a lost thread stays until its code returns or the process ends",
                "give blocking calls (sockets, locks, subprocesses) a timeout of their own; restart the worker", data,
            )  # fmt: skip


def of_lanes(
    ready: Mapping[tuple[str, str], int], workers: Sequence[WorkerInfo], paused: set[str]
) -> Iterator[Finding]:
    """Ready runs, by queue and task, that no worker would take."""
    alive = [worker for worker in workers if worker.state != "dead"]
    if not alive:
        return
    for (queue, task), runs in sorted(ready.items()):
        serving = [worker for worker in alive if worker.queues is None or queue in worker.queues]
        if queue in paused:
            yield Finding(
                "paused", "note", f"queue {queue} is paused and has {runs:,} ready runs of {task}",
                "they wait until somebody resumes it", f"holdfast resume {queue}", {"queue": queue, "runs": runs},
            )  # fmt: skip
        elif not serving:
            yield Finding(
                "no_queue", "wrong", f"no worker serves queue {queue}, which has {runs:,} ready runs of {task}",
                "they wait until one does", f"holdfast worker --queues {queue}", {"queue": queue, "runs": runs},
            )  # fmt: skip
        elif not any(worker.tasks is None or task in worker.tasks for worker in serving):
            yield Finding(
                "unknown_task", "wrong", f"no worker knows task {task}, which has {runs:,} ready runs in queue {queue}",
                "they wait until a worker has its code: it may have been renamed, or not be deployed yet",
                "deploy its code, give the new name aliases=(…), or cancel the runs:"
                f" holdfast cancel --task {task} --dry-run",
                {"task": task, "queue": queue, "runs": runs},
            )  # fmt: skip


def of_missing_lanes(runs: Mapping[int, int]) -> Iterator[Finding]:
    """Unfinished runs, by the number of a lane that isn't in the table of lanes."""
    for lane, number in sorted(runs.items()):
        yield Finding(
            "missing_lane", "wrong", f"{number:,} unfinished runs are in lane {lane}, which isn't in the lanes table",
            "something else changed the tables: the queue and the task of these runs are unknown, so that no worker can"
            " take them, and no list shows them",
            f"restore the row of lane {lane} from a backup, or delete the runs", {"lane": lane, "runs": number},
        )  # fmt: skip


def of_tasks(tasks: Sequence[TaskInfo]) -> Iterator[Finding]:
    """Settings of tasks that contradict each other."""
    for task in tasks:
        if task.timeout is not None and task.deadline is not None and task.timeout >= task.deadline:
            yield Finding(
                "settings", "wrong",
                f"task {task.name} has a timeout of {task.timeout:g} s and a deadline of {task.deadline:g} s",
                "an attempt that hangs ends the whole run: it is never tried again, though it may be tried"
                f" {task.max_attempts} times",
                "let the deadline be a multiple of the timeout", {"task": task.name},
            )  # fmt: skip
