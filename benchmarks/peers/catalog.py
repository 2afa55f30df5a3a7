"""The peers: their versions, their tables, and how each is measured.

The settings are the fastest of several that were tried. Counts are chosen so that a repetition takes some seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.databases import PostgresBackend, SqliteBackend
from benchmarks.suite.enqueue import AT_ONCE, BULK, CALLERS, MODES, ONE_BY_ONE
from benchmarks.suite.jobs import format_workers
from benchmarks.suite.steps import ALONE, format_concurrency

POSTGRES, SQLITE = PostgresBackend.name, SqliteBackend.name
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
    """The first one contains the jobs."""
    unfinished: str
    """A SQL condition: is any job unfinished?"""
    done_query: str
    """Counts the finished jobs."""
    steps_query: str = ""
    """Counts the recorded steps."""
    settings: Settings = field(default_factory=dict)


RAW = Peer(
    "raw",
    (ASYNCPG, "apsw==3.54.1.0", UVLOOP),
    tables=("job", "event", "step"),
    unfinished="exists (select from job where state = 0) or exists (select from job where state = 1)",
    done_query="select count(*) from job where state = 2",
    steps_query="select count(*) from step",
    settings={"batch": 200},
)
PGQUEUER = Peer(
    "pgqueuer",
    ("pgqueuer==1.6.0", ASYNCPG, UVLOOP),
    tables=("pgqueuer", "pgqueuer_log", "pgqueuer_statistics"),
    unfinished="exists (select from pgqueuer)",
    done_query="select count(*) from pgqueuer_log where status = 'successful'",
    settings={"batch": 200},
)
DBOS = Peer(
    "dbos",
    ("dbos==3.3.0", "psycopg[binary]==3.3.8", "pydantic-ai-slim==2.66.0"),
    tables=("dbos.workflow_status", "dbos.operation_outputs", "dbos.workflow_input", "dbos.workflow_output"),
    unfinished="exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING'))",
    done_query="select count(*) from dbos.workflow_status where status = 'SUCCESS'",
    steps_query="select count(*) from dbos.operation_outputs",
    settings={"concurrency": 500, "poll": 0.1, "pool": 6, "threads": 16},
)
ABSURD = Peer(
    "absurd",
    ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.8", UVLOOP),
    tables=tuple(f"absurd.{kind}_default" for kind in "trcew"),
    unfinished="exists (select from absurd.t_default where state not in ('completed', 'failed', 'cancelled'))",
    done_query="select count(*) from absurd.t_default where state = 'completed'",
    steps_query="select count(*) from absurd.c_default",
    settings={"concurrency": 200, "poll": 0.25},
)
PROCRASTINATE = Peer(
    "procrastinate",
    ("procrastinate==3.10.0", PSYCOPG, UVLOOP),
    tables=tuple(f"procrastinate_{table}" for table in ("jobs", "events", "workers", "periodic_defers")),
    unfinished="exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
    done_query="select count(*) from procrastinate_jobs where status = 'succeeded'",
    settings={"concurrency": 30, "pool": 4},
)
CHANCY = Peer(
    "chancy",
    ("chancy==0.26.0", PSYCOPG, UVLOOP),
    tables=("chancy_jobs", "chancy_workers"),
    unfinished="exists (select from chancy_jobs where state not in ('succeeded', 'failed'))",
    done_query="select count(*) from chancy_jobs where state = 'succeeded'",
    settings={"concurrency": 1000},
)
OBAN = Peer(
    "oban",
    ("oban==0.7.0", PSYCOPG, UVLOOP),
    tables=("oban_jobs", "oban_producers"),
    unfinished="exists (select from oban_jobs where state in ('available', 'executing', 'scheduled', 'retryable'))",
    done_query="select count(*) from oban_jobs where state = 'completed'",
    settings={"concurrency": 100, "pool": 10},
)
PEERS = {peer.name: peer for peer in (RAW, PGQUEUER, DBOS, ABSURD, PROCRASTINATE, CHANCY, OBAN)}


@dataclass(frozen=True, slots=True)
class PeerCase:
    """How a peer is measured for one variant of a benchmark."""

    peer: Peer
    database: str
    variant: str
    count: int
    task: str = "noop"
    workers: int = 1
    mode: str = ""
    """How jobs are enqueued, if that is measured; empty if workers are measured."""
    callers: int = 1
    direct: bool = False
    """Whether one process does everything and reports its rate, as it always does on SQLite."""
    changes: Settings = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        return {**self.peer.settings, **self.changes}


JOBS = {
    RAW: 50_000, PGQUEUER: 20_000, CHANCY: 20_000, OBAN: 20_000, ABSURD: 10_000, PROCRASTINATE: 10_000, DBOS: 5_000,
}  # fmt: skip


def _jobs() -> list[PeerCase]:
    on_server = [
        PeerCase(peer, POSTGRES, format_workers(workers), count, workers=workers)
        for workers in (1, 2)
        for peer, count in JOBS.items()
    ]
    return [*on_server, PeerCase(RAW, SQLITE, format_workers(1), 50_000, direct=True)]


def _steps() -> list[PeerCase]:
    many, fewer = format_concurrency(500), format_concurrency(100)

    def case(peer: Peer, database: str, variant: str, count: int, direct: bool = False, **changes: Any) -> PeerCase:
        return PeerCase(peer, database, variant, count, "steps", direct=direct, changes=changes)

    return [
        case(RAW, POSTGRES, many, 20_000, concurrency=500),
        case(ABSURD, POSTGRES, many, 500, concurrency=500),
        case(DBOS, POSTGRES, many, 500),
        case(RAW, POSTGRES, fewer, 10_000, concurrency=100),
        case(ABSURD, POSTGRES, fewer, 500, concurrency=100),
        case(RAW, POSTGRES, ALONE, 500, concurrency=1),
        case(ABSURD, POSTGRES, ALONE, 200, concurrency=1),
        case(DBOS, POSTGRES, ALONE, 200, direct=True, concurrency=1, pool=8),
        case(RAW, SQLITE, many, 10_000, direct=True, concurrency=500),
        case(DBOS, SQLITE, many, 200, direct=True, concurrency=8, pool=8),
        case(RAW, SQLITE, fewer, 10_000, direct=True, concurrency=100),
        case(RAW, SQLITE, ALONE, 500, direct=True, concurrency=1),
        case(DBOS, SQLITE, ALONE, 200, direct=True, concurrency=1, pool=8),
    ]


def _latency() -> list[PeerCase]:
    polls = {DBOS: {"poll": 0.05}, ABSURD: {"poll": 0.02}}
    return [PeerCase(peer, POSTGRES, "", 300, changes=polls.get(peer, {})) for peer in PEERS.values()]


def _enqueue() -> list[PeerCase]:
    bulk = {RAW: 100_000, DBOS: 5_000}

    def case(peer: Peer, mode: str, count: int, callers: int = 1) -> PeerCase:
        return PeerCase(peer, POSTGRES, mode, count, mode=MODES[mode], callers=callers)

    return [
        each
        for peer in PEERS.values()
        for each in (
            case(peer, ONE_BY_ONE, 3_000 if peer is RAW else 1_500),
            case(peer, AT_ONCE, 20_000 if peer is RAW else 3_000, CALLERS),
            case(peer, BULK, bulk.get(peer, 20_000)),
        )
    ]


def _continuations() -> list[PeerCase]:
    return [
        PeerCase(DBOS, POSTGRES, "", 200, changes={"pool": 8, "poll": 0.05}),
        PeerCase(ABSURD, POSTGRES, "", 100, changes={"poll": 0.02}),
        PeerCase(DBOS, SQLITE, "", 200, changes={"pool": 8, "poll": 0.05}),
    ]


def _agents() -> list[PeerCase]:
    return [PeerCase(DBOS, database, "", 100, changes={"pool": 8}) for database in (POSTGRES, SQLITE)]


PEER_CASES: dict[str, Callable[[], list[PeerCase]]] = {
    "jobs": _jobs,
    "steps": _steps,
    "latency": _latency,
    "enqueue": _enqueue,
    "continuations": _continuations,
    "agents": _agents,
}
