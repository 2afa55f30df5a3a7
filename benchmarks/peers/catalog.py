"""The peers: their versions, their tables, and how each is run in each measure.

The settings are the fastest of several that were tried for each. Counts are such that a repetition takes some seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.enqueue import AT_ONCE, BULK, CALLERS, ONE_BY_ONE, WAYS
from benchmarks.hosts import PostgresHost, SqliteHost
from benchmarks.jobs import by
from benchmarks.steps import ALONE, at_once

POSTGRES, SQLITE = PostgresHost.name, SqliteHost.name
ASYNCPG = "asyncpg==0.32.0"
UVLOOP = "uvloop==0.23.0"
PSYCOPG = "psycopg[binary,pool]==3.3.8"

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """One peer and its tables on PostgreSQL."""

    name: str
    requirements: tuple[str, ...]
    tables: tuple[str, ...]
    """The first has the jobs."""
    unfinished: str
    """A condition: whether any job isn't done."""
    done: str
    """A query: how many are."""
    steps: str = ""
    """A query: how many steps are on record."""
    settings: Settings = field(default_factory=dict)


RAW = Peer(
    "raw",
    (ASYNCPG, "apsw==3.54.1.0", UVLOOP),
    tables=("job", "event", "step"),
    unfinished="exists (select from job where state = 0) or exists (select from job where state = 1)",
    done="select count(*) from job where state = 2",
    steps="select count(*) from step",
    settings={"batch": 200},
)
PGQUEUER = Peer(
    "pgqueuer",
    ("pgqueuer==1.6.0", ASYNCPG, UVLOOP),
    tables=("pgqueuer", "pgqueuer_log", "pgqueuer_statistics"),
    unfinished="exists (select from pgqueuer)",
    done="select count(*) from pgqueuer_log where status = 'successful'",
    settings={"batch": 200},
)
DBOS = Peer(
    "dbos",
    ("dbos==3.3.0", "psycopg[binary]==3.3.8"),
    tables=("dbos.workflow_status", "dbos.operation_outputs", "dbos.workflow_input", "dbos.workflow_output"),
    unfinished="exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING'))",
    done="select count(*) from dbos.workflow_status where status = 'SUCCESS'",
    steps="select count(*) from dbos.operation_outputs",
    settings={"concurrency": 500, "poll": 0.1, "pool": 6, "threads": 16},
)
ABSURD = Peer(
    "absurd",
    ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.8", UVLOOP),
    tables=tuple(f"absurd.{kind}_default" for kind in "trcew"),
    unfinished="exists (select from absurd.t_default where state not in ('completed', 'failed', 'cancelled'))",
    done="select count(*) from absurd.t_default where state = 'completed'",
    steps="select count(*) from absurd.c_default",
    settings={"concurrency": 200, "poll": 0.25},
)
PROCRASTINATE = Peer(
    "procrastinate",
    ("procrastinate==3.10.0", PSYCOPG, UVLOOP),
    tables=tuple(f"procrastinate_{part}" for part in ("jobs", "events", "workers", "periodic_defers")),
    unfinished="exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
    done="select count(*) from procrastinate_jobs where status = 'succeeded'",
    settings={"concurrency": 30, "pool": 4},
)
CHANCY = Peer(
    "chancy",
    ("chancy==0.26.0", PSYCOPG, UVLOOP),
    tables=("chancy_jobs", "chancy_workers"),
    unfinished="exists (select from chancy_jobs where state not in ('succeeded', 'failed'))",
    done="select count(*) from chancy_jobs where state = 'succeeded'",
    settings={"concurrency": 1000},
)
OBAN = Peer(
    "oban",
    ("oban==0.7.0", PSYCOPG, UVLOOP),
    tables=("oban_jobs", "oban_producers"),
    unfinished="exists (select from oban_jobs where state in ('available', 'executing', 'scheduled', 'retryable'))",
    done="select count(*) from oban_jobs where state = 'completed'",
    settings={"concurrency": 100, "pool": 10},
)
PEERS = {peer.name: peer for peer in (RAW, PGQUEUER, DBOS, ABSURD, PROCRASTINATE, CHANCY, OBAN)}


@dataclass(frozen=True, slots=True)
class Trial:
    """How a peer is run for one figure."""

    peer: Peer
    database: str
    part: str
    count: int
    task: str = "noop"
    workers: int = 1
    way: str = ""
    """Of enqueueing; empty where workers are measured."""
    callers: int = 1
    direct: bool = False
    """One process does everything and tells how fast; always so on SQLite."""
    changes: Settings = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        return {**self.peer.settings, **self.changes}


JOBS = {
    RAW: 50_000, PGQUEUER: 20_000, CHANCY: 20_000, OBAN: 20_000, ABSURD: 10_000, PROCRASTINATE: 10_000, DBOS: 5_000,
}  # fmt: skip


def _jobs() -> list[Trial]:
    on_server = [
        Trial(peer, POSTGRES, by(workers), count, workers=workers) for workers in (1, 2) for peer, count in JOBS.items()
    ]
    return [*on_server, Trial(RAW, SQLITE, by(1), 50_000, direct=True)]


def _steps() -> list[Trial]:
    many, fewer = at_once(500), at_once(100)

    def trial(peer: Peer, database: str, part: str, count: int, direct: bool = False, **changes: Any) -> Trial:
        return Trial(peer, database, part, count, "steps", direct=direct, changes=changes)

    return [
        trial(RAW, POSTGRES, many, 20_000, concurrency=500),
        trial(ABSURD, POSTGRES, many, 500, concurrency=500),
        trial(DBOS, POSTGRES, many, 500),
        trial(RAW, POSTGRES, fewer, 10_000, concurrency=100),
        trial(ABSURD, POSTGRES, fewer, 500, concurrency=100),
        trial(RAW, POSTGRES, ALONE, 500, concurrency=1),
        trial(ABSURD, POSTGRES, ALONE, 200, concurrency=1),
        trial(DBOS, POSTGRES, ALONE, 200, direct=True, concurrency=1, pool=8),
        trial(RAW, SQLITE, many, 10_000, direct=True, concurrency=500),
        trial(DBOS, SQLITE, many, 200, direct=True, concurrency=8, pool=8),
        trial(RAW, SQLITE, fewer, 10_000, direct=True, concurrency=100),
        trial(RAW, SQLITE, ALONE, 500, direct=True, concurrency=1),
        trial(DBOS, SQLITE, ALONE, 200, direct=True, concurrency=1, pool=8),
    ]


def _latency() -> list[Trial]:
    polls = {DBOS: {"poll": 0.05}, ABSURD: {"poll": 0.02}}
    return [Trial(peer, POSTGRES, "", 300, changes=polls.get(peer, {})) for peer in PEERS.values()]


def _enqueue() -> list[Trial]:
    bulk = {RAW: 100_000, DBOS: 5_000}

    def trial(peer: Peer, way: str, count: int, callers: int = 1) -> Trial:
        return Trial(peer, POSTGRES, way, count, way=WAYS[way], callers=callers)

    return [
        each
        for peer in PEERS.values()
        for each in (
            trial(peer, ONE_BY_ONE, 3_000 if peer is RAW else 1_500),
            trial(peer, AT_ONCE, 20_000 if peer is RAW else 3_000, CALLERS),
            trial(peer, BULK, bulk.get(peer, 20_000)),
        )
    ]


TRIALS: dict[str, Callable[[], list[Trial]]] = {
    "jobs": _jobs,
    "steps": _steps,
    "latency": _latency,
    "enqueue": _enqueue,
}
