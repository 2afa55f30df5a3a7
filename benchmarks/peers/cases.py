"""Cases of peers: what a peer's processes did with its tables, timed and checked in the same way as ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.children import Command, finish
from benchmarks.hosts import Host, PostgresHost
from benchmarks.latency import take_latency
from benchmarks.measure import Case, Figures, Measure, check, note
from benchmarks.peers.catalog import PEERS, TRIALS, Peer, Trial
from benchmarks.peers.environments import Environment, Unavailable, prepare
from benchmarks.tasks import STEPS_PER_RUN
from benchmarks.throughput import LONGEST_SECONDS, rate_of, scratch_folder
from holdfast.testing.server import create_database, database_of, drop_database

RUN = Path(__file__).with_name("scripts") / "run.py"


class PeerTables:
    """A peer's tables, in a database of its own."""

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
        """No rows, no dead rows, no dirty pages: nothing to be cleaned up while the next one is measured."""
        self._connection.execute(f"truncate {', '.join(self._peer.tables)} restart identity cascade".encode())
        self.settle()

    def settle(self) -> None:
        import psycopg

        self._connection.execute(f"vacuum analyze {', '.join(self._peer.tables)}".encode())
        with suppress(psycopg.errors.InsufficientPrivilege):
            self._connection.execute("checkpoint")

    def unfinished(self) -> bool:
        return bool(self._value(f"select {self._peer.unfinished}"))

    def done(self) -> int:
        return int(self._value(self._peer.done))

    def steps(self) -> int:
        return int(self._value(self._peer.steps))

    def jobs(self) -> int:
        return int(self._value(f"select count(*) from {self._peer.tables[0]}"))

    def _value(self, query: str) -> Any:
        row = self._connection.execute(query.encode()).fetchone()
        return row[0] if row else None


class Bench:
    """One peer, its environment, and its tables where they are on a server."""

    def __init__(self, peer: Peer, environment: Environment, tables: PeerTables | None) -> None:
        self._peer = peer
        self._environment = environment
        self._tables = tables
        self._is_set_up = tables is None

    def take(self, measure: str, trial: Trial) -> Figures:
        """One repetition."""
        if not self._is_set_up:
            self._set_up()
        if self._tables is None:
            return {trial.part: self._take_direct(trial, None)}
        try:
            return self._take_on(self._tables, measure, trial)
        finally:
            self._tables.empty()

    def _take_on(self, tables: PeerTables, measure: str, trial: Trial) -> Figures:
        if measure == "latency":
            return self._take_latency(trial, tables)
        if trial.direct:
            return {trial.part: self._take_direct(trial, tables)}
        if trial.way:
            return {trial.part: self._take_enqueue(trial, tables)}
        return {trial.part: self._take_work(trial, tables)}

    def _set_up(self) -> None:
        """Make the peer's tables."""
        with scratch_folder() as scratch:
            trial = Trial(self._peer, PostgresHost.name, "", 0)
            finish(self._command("prepare", trial, scratch), scratch, "setup", LONGEST_SECONDS)
        if self._tables is not None:
            self._tables.settle()
        self._is_set_up = True

    def _take_direct(self, trial: Trial, tables: PeerTables | None) -> float:
        """Everything in one process, which tells what it did where nobody else can look."""
        with scratch_folder() as scratch:
            answer = finish(self._command("direct", trial, scratch), scratch, self._peer.name, LONGEST_SECONDS)
        check("runs done", tables.done() if tables else answer["done"], trial.count)
        if trial.task == "steps":
            check("steps on record", tables.steps() if tables else answer["steps"], trial.count * STEPS_PER_RUN)
        return float(answer["rate"]) * _steps_in(trial)

    def _take_enqueue(self, trial: Trial, tables: PeerTables) -> float:
        with scratch_folder() as scratch:
            rate = finish(self._command("enqueue", trial, scratch), scratch, "enqueuer", LONGEST_SECONDS)["rate"]
        check("jobs enqueued", tables.jobs(), trial.count)
        return float(rate)

    def _take_latency(self, trial: Trial, tables: PeerTables) -> Figures:
        def sender(scratch: Path, count: int) -> Command:
            return self._command("enqueue", replace(trial, count=count, way="paced"), scratch)

        return take_latency(tables, trial.count, lambda scratch: [self._command("work", trial, scratch)], sender)

    def _take_work(self, trial: Trial, tables: PeerTables) -> float:
        with scratch_folder() as scratch:
            fill = self._command("enqueue", replace(trial, way="bulk"), scratch)
            finish(fill, scratch, "enqueuer", LONGEST_SECONDS)
        tables.settle()
        rate = rate_of(tables, trial.count, lambda scratch: [self._command("work", trial, scratch)] * trial.workers)
        check("runs done", tables.done(), trial.count)
        if trial.task == "steps":
            check("steps on record", tables.steps(), trial.count * STEPS_PER_RUN)
        return rate * _steps_in(trial)

    def _command(self, verb: str, trial: Trial, scratch: Path) -> Command:
        told = {
            "url": self._tables.url if self._tables else "",
            "scratch": str(scratch),
            "count": trial.count,
            "task": trial.task,
            "way": trial.way,
            "callers": trial.callers,
            "settings": trial.settings,
        }
        return [str(self._environment.python), str(RUN), self._peer.name, verb, json.dumps(told)]


def _steps_in(trial: Trial) -> int:
    return STEPS_PER_RUN if trial.task == "steps" else 1


class Peers:
    """The peers of one command, with their environments."""

    def __init__(self, names: Sequence[str]) -> None:
        self._unavailable: dict[str, str] = {}
        self._environments: dict[str, Environment] = {}
        for name in names:
            try:
                self._environments[name] = prepare(name, PEERS[name].requirements)
            except Unavailable as why:
                self._unavailable[name] = str(why)
                note(f"peers: {name} isn't measured: {why}")

    def cases(self, measure: Measure, host: Host, parts: set[str], scale: float, stack: ExitStack) -> list[Case]:
        """Those that have these parts of a measure on this database; `scale` is what becomes of their counts."""
        benches: dict[str, Bench] = {}
        cases = []
        for trial in TRIALS[measure.name]():
            name = trial.peer.name
            if trial.database != host.name or trial.part not in parts or name not in self._environments:
                continue
            if name not in benches:
                benches[name] = self._bench(trial.peer, host, stack)
            scaled = replace(trial, count=_scaled(trial, scale))
            details = {
                "count": scaled.count,
                "settings": trial.settings,
                "versions": self._environments[name].versions,
            }
            take = partial(benches[name].take, measure.name, scaled)
            cases.append(Case(host.name, name, take, trial.part, details))
        return cases

    def missing(self, measure: Measure, cases: Sequence[Case]) -> dict[str, str]:
        """Who was asked for and isn't among these cases, and why."""
        there = {case.subject for case in cases}
        odd = dict.fromkeys(self._environments, f"it has nothing to compare in {measure.name} here")
        return {**self._unavailable, **{name: why for name, why in odd.items() if name not in there}}

    def _bench(self, peer: Peer, host: Host, stack: ExitStack) -> Bench:
        tables = None
        if isinstance(host, PostgresHost):
            tables = PeerTables(host.url, peer)
            stack.callback(tables.close)
        return Bench(peer, self._environments[peer.name], tables)


def _scaled(trial: Trial, scale: float) -> int:
    count = max(round(trial.count * scale), 1)
    return max(count // trial.callers, 1) * trial.callers
