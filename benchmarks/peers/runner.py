"""Measure peers in the same way as Holdfast: same clock, same checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, Case, Metrics, check_count, log
from benchmarks.databases import Backend, PostgresBackend
from benchmarks.peers.catalog import PEER_CASES, PEERS, Peer, PeerCase
from benchmarks.peers.environments import Environment, PeerUnavailable, prepare
from benchmarks.processes import Command, run_process, scratch_folder
from benchmarks.suite.latency import measure_latency
from benchmarks.tasks import STEPS_PER_RUN
from benchmarks.throughput import TIMEOUT_S, measure_rate
from holdfast.testing.server import create_database, database_of, drop_database

RUN = Path(__file__).with_name("scripts") / "run.py"


class PeerDatabase:
    """A database with the tables of a peer."""

    def __init__(self, server: str, peer: Peer) -> None:
        import psycopg

        self._peer = peer
        self._server = server
        self.url = create_database(server)
        self._connection = psycopg.connect(self.url, autocommit=True)

    def close(self) -> None:
        self._connection.close()
        drop_database(self._server, database_of(self.url))

    def empty(self) -> None:
        """Remove all rows, so that no cleanup runs during the next repetition."""
        self._connection.execute(f"truncate {', '.join(self._peer.tables)} restart identity cascade".encode())
        self.settle()

    def settle(self) -> None:
        import psycopg

        self._connection.execute(f"vacuum analyze {', '.join(self._peer.tables)}".encode())
        with suppress(psycopg.errors.InsufficientPrivilege):
            self._connection.execute("checkpoint")

    def has_unfinished(self) -> bool:
        return bool(self._value(f"select {self._peer.unfinished}"))

    def count_done(self) -> int:
        return int(self._value(self._peer.done_query))

    def count_steps(self) -> int:
        return int(self._value(self._peer.steps_query))

    def count_jobs(self) -> int:
        return int(self._value(f"select count(*) from {self._peer.tables[0]}"))

    def _value(self, query: str) -> Any:
        row = self._connection.execute(query.encode()).fetchone()
        return row[0] if row else None


class PeerRunner:
    """Runs the processes of one peer. `db` is None on SQLite, where the peer creates its own file."""

    def __init__(self, peer: Peer, environment: Environment, db: PeerDatabase | None) -> None:
        self._peer = peer
        self._environment = environment
        self._db = db
        self._is_set_up = db is None

    def measure(self, benchmark: str, case: PeerCase) -> Metrics:
        """Measure one repetition."""
        if not self._is_set_up:
            self._set_up()
        if benchmark in ("continuations", "agents"):
            return self._measure_in_one_process(benchmark, case)
        if self._db is None:
            return {case.variant: self._measure_direct(case, None)}
        try:
            return self._measure_on(self._db, benchmark, case)
        finally:
            self._db.empty()

    def _measure_on(self, db: PeerDatabase, benchmark: str, case: PeerCase) -> Metrics:
        if benchmark == "latency":
            return self._measure_latency(case, db)
        if case.direct:
            return {case.variant: self._measure_direct(case, db)}
        if case.mode:
            return {case.variant: self._measure_enqueue(case, db)}
        return {case.variant: self._measure_work(case, db)}

    def _measure_in_one_process(self, benchmark: str, case: PeerCase) -> Metrics:
        """Let one process measure everything and report milliseconds."""
        with scratch_folder() as scratch:
            command = self._command(f"measure_{benchmark}", case, scratch)
            metrics = run_process(command, scratch, self._peer.name, TIMEOUT_S)
        if self._db is not None:
            self._db.empty()
        return metrics

    def _set_up(self) -> None:
        """Create the peer's tables."""
        with scratch_folder() as scratch:
            case = PeerCase(self._peer, PostgresBackend.name, "", 0)
            run_process(self._command("prepare", case, scratch), scratch, "setup", TIMEOUT_S)
        if self._db is not None:
            self._db.settle()
        self._is_set_up = True

    def _measure_direct(self, case: PeerCase, db: PeerDatabase | None) -> float:
        """Let one process do everything and report its rate, and on SQLite also what it did."""
        with scratch_folder() as scratch:
            answer = run_process(self._command("direct", case, scratch), scratch, self._peer.name, TIMEOUT_S)
        check_count("runs done", db.count_done() if db else answer["done"], case.count)
        if case.task == "steps":
            check_count("steps recorded", db.count_steps() if db else answer["steps"], case.count * STEPS_PER_RUN)
        return float(answer["rate"]) * _steps_in(case)

    def _measure_enqueue(self, case: PeerCase, db: PeerDatabase) -> float:
        with scratch_folder() as scratch:
            rate = run_process(self._command("enqueue", case, scratch), scratch, "enqueuer", TIMEOUT_S)["rate"]
        check_count("jobs enqueued", db.count_jobs(), case.count)
        return float(rate)

    def _measure_latency(self, case: PeerCase, db: PeerDatabase) -> Metrics:
        def sender(scratch: Path, count: int) -> Command:
            return self._command("enqueue", replace(case, count=count, mode="paced"), scratch)

        return measure_latency(db, case.count, lambda scratch: [self._command("work", case, scratch)], sender)

    def _measure_work(self, case: PeerCase, db: PeerDatabase) -> float:
        with scratch_folder() as scratch:
            fill = self._command("enqueue", replace(case, mode="bulk"), scratch)
            run_process(fill, scratch, "enqueuer", TIMEOUT_S)
        db.settle()
        rate = measure_rate(db, case.count, lambda scratch: [self._command("work", case, scratch)] * case.workers)
        check_count("runs done", db.count_done(), case.count)
        if case.task == "steps":
            check_count("steps recorded", db.count_steps(), case.count * STEPS_PER_RUN)
        return rate * _steps_in(case)

    def _command(self, verb: str, case: PeerCase, scratch: Path) -> Command:
        config = {
            "url": self._db.url if self._db else "",
            "scratch": str(scratch),
            "count": case.count,
            "task": case.task,
            "mode": case.mode,
            "callers": case.callers,
            "settings": case.settings,
        }
        return [str(self._environment.python), str(RUN), self._peer.name, verb, json.dumps(config)]


def _steps_in(case: PeerCase) -> int:
    return STEPS_PER_RUN if case.task == "steps" else 1


class Peers:
    """The selected peers and their environments."""

    def __init__(self, names: Sequence[str]) -> None:
        self._unavailable: dict[str, str] = {}
        self._environments: dict[str, Environment] = {}
        for name in names:
            try:
                self._environments[name] = prepare(name, PEERS[name].requirements)
            except PeerUnavailable as why:
                self._unavailable[name] = str(why)
                log(f"peers: skipping {name}: {why}")

    def cases(
        self, benchmark: Benchmark, backend: Backend, variants: set[str], scale: float, stack: ExitStack
    ) -> list[Case]:
        """Return the peers' cases for these variants on this backend, with counts multiplied by `scale`."""
        runners: dict[str, PeerRunner] = {}
        cases = []
        for case in PEER_CASES[benchmark.name]():
            name = case.peer.name
            if case.database != backend.name or case.variant not in variants or name not in self._environments:
                continue
            if name not in runners:
                runners[name] = self._make_runner(case.peer, backend, stack)
            scaled = replace(case, count=_scaled(case, scale))
            details = {
                "count": scaled.count,
                "settings": case.settings,
                "versions": self._environments[name].versions,
            }
            measure = partial(runners[name].measure, benchmark.name, scaled)
            cases.append(Case(backend.name, name, measure, case.variant, details))
        return cases

    def missing(self, benchmark: Benchmark, cases: Sequence[Case]) -> dict[str, str]:
        """Return the selected peers that have no case, and why."""
        there = {case.subject for case in cases}
        odd = dict.fromkeys(self._environments, f"has nothing to compare with {benchmark.name} here")
        return {**self._unavailable, **{name: why for name, why in odd.items() if name not in there}}

    def _make_runner(self, peer: Peer, backend: Backend, stack: ExitStack) -> PeerRunner:
        db = None
        if isinstance(backend, PostgresBackend):
            db = PeerDatabase(backend.url, peer)
            stack.callback(db.close)
        return PeerRunner(peer, self._environments[peer.name], db)


def _scaled(case: PeerCase, scale: float) -> int:
    count = max(round(case.count * scale), 1)
    return max(count // case.callers, 1) * case.callers
