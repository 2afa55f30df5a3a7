"""A chaos run on one database, from the first worker to the collected facts."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from holdfast import Holdfast
from tests.chaos.databases import ChaosDatabase
from tests.chaos.facts import FINAL, Facts, collect_facts
from tests.chaos.faults import (
    Fault,
    FaultInjector,
    OperatorPaused,
    WorkerKilled,
    WorkerPaused,
    WorkerStopped,
    WorkerTerminated,
    task_faults,
)
from tests.chaos.feeder import Feeder
from tests.chaos.worker_pool import WorkerPool
from tests.chaos.workload import Workload
from tests.support.culprits import CULPRITS, HARMS, KILLS
from tests.support.history_queries import fetch
from tests.support.ledger import Ledger

SETTLE_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.2
MIN_STALL_S = 0.8
OPEN = "select count(*) from {}runs where state not in ('" + "', '".join(FINAL) + "')"


@dataclass(frozen=True)
class ChaosConfig:
    """The parameters of a chaos run."""

    seconds: float
    seed: int
    workers: int = 4
    concurrency: int = 10
    lease: float = 3.0
    rate: float = 12.0
    max_unfinished: int = 60
    worker_faults: bool = True


@dataclass
class Outcome:
    """The outcome of a chaos run, for the report."""

    facts: Facts
    faults: list[Fault]
    skewed_clocks: int
    failed_starts: int
    sessions_lost: int
    repeats: int
    tracebacks: list[str]
    errors: list[str]
    seconds: float
    settled: float
    stopped_early: bool
    harms: dict[str, int]
    """How often culprits did which harm, according to the ledger."""
    ended_by_tasks: int


class ChaosRun:
    """Runs workers, feeder and fault injector, and waits until all runs have finished."""

    def __init__(self, database: ChaosDatabase, folder: Path, config: ChaosConfig, log: Callable[[str], None]) -> None:
        self._database = database
        self._config = config
        self._log = log
        self._ledger = Ledger(folder / "ledger")
        source = random.Random(config.seed)
        self._pool = WorkerPool(
            database.url, folder, config.workers, config.lease, config.concurrency, random.Random(source.random()),
            database.machines,
        )  # fmt: skip
        self._workload = Workload(Holdfast(database.client_url or database.url), self._ledger, config.lease)
        self._feeder = Feeder(self._workload, config.rate, config.max_unfinished, random.Random(source.random()))
        kinds = (WorkerKilled, WorkerStopped, WorkerPaused, WorkerTerminated) if config.worker_faults else ()
        worker_faults: list[Fault] = [kind(random.Random(source.random()), self._pool) for kind in kinds]
        self._database_faults = list(database.faults(random.Random(source.random()), config.lease))
        harmful_tasks = task_faults(random.Random(source.random()), self._feeder) if config.worker_faults else []
        operator = OperatorPaused(random.Random(source.random()), self._feeder, self._workload.app)
        self._operators = [operator] if config.worker_faults else []
        machine_faults = database.machine_faults(random.Random(source.random()), self._pool)
        self._database_faults += [fault for fault in machine_faults if fault.is_outage]
        worker_faults += [fault for fault in machine_faults if not fault.is_outage]
        self._injector = FaultInjector([*worker_faults, *harmful_tasks, *self._operators, *self._database_faults])
        self._stalls: list[tuple[float, float]] = []

    def run(self) -> Outcome:
        """Run to the end. Ctrl-C stops the faults early and lets all runs finish."""
        since = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self._workload.app.close)
            stack.callback(self._feeder.close)
            stack.callback(self._pool.close)
            self._pool.start()
            self._feeder.start()
            self._injector.start()
            early = self._watch(since)
            faults_stopped = time.monotonic()
            self._log("faults stopped; waiting for all runs to finish")
            self._injector.stop()
            self._feeder.finish()
            direct_url = stack.enter_context(Holdfast(self._database.direct_url))
            self._settle(direct_url)
            settled = time.monotonic()
            self._pool.close()
            facts = collect_facts(direct_url, self._ledger, self._feeder.acknowledged)
        facts.kills = self._pool.kills
        facts.attacks = self._pool.attacks
        facts.lease = self._config.lease
        planned = [window for fault in self._database_faults if fault.is_outage for window in fault.times]
        facts.windows = [*planned, *self._database.outages(), *self._stalls]
        facts.pauses = [window for operator in self._operators for window in operator.times]
        harms = Counter(CULPRITS[line.step].harm for line in facts.lines if line.kind == "harm")
        deadly = {line.pid for line in facts.lines if line.kind == "harm" and CULPRITS[line.step].harm == KILLS}
        unexplained = [each for each in self._pool.unexpected_exits if each.process.pid not in deadly]
        facts.unexpected_exits = [str(worker.log) for worker in unexplained]
        return Outcome(
            facts,
            list(self._injector.faults),
            self._pool.skewed_clocks,
            self._pool.failed_starts,
            sum(text.count("session lost ") for _, text in self._pool.logs()),
            self._feeder.repeats,
            [str(path) for path, text in self._pool.logs() if "Traceback" in text],
            [*self._injector.errors, *self._feeder.errors, *self._database.check_integrity()],
            faults_stopped - since,
            settled - faults_stopped,
            early,
            {harm: harms[harm] for harm in HARMS},
            len(self._pool.unexpected_exits) - len(unexplained),
        )

    def _watch(self, since: float) -> bool:
        """Wait until the time is over and return whether the run was stopped early."""
        logged = 0
        try:
            while (passed := time.monotonic() - since) < self._config.seconds and not self._database.is_exhausted():
                if self._injector.errors or self._feeder.errors:
                    return True
                self._sleep()
                self._pool.replace_exited()
                if passed // 10 > logged:
                    logged = int(passed // 10)
                    self._log_progress(passed)
        except KeyboardInterrupt:
            return True
        return False

    def _sleep(self) -> None:
        """Sleep until the next poll, and record it if the whole machine stalled meanwhile."""
        since = time.monotonic()
        time.sleep(POLL_INTERVAL_S)
        if time.monotonic() - since > POLL_INTERVAL_S + MIN_STALL_S:
            self._stalls.append((since, time.monotonic()))

    def _log_progress(self, passed: float) -> None:
        fired = ", ".join(
            f"{fault.name.split(' (')[0]} {fault.fired}" for fault in self._injector.faults if fault.fired
        )
        self._log(
            f"{passed:.0f} of {self._config.seconds:.0f} s: {len(self._feeder.acknowledged)} roots started,"
            f" {self._feeder.unfinished} unfinished; {fired}"
        )

    def _settle(self, direct_url: Holdfast) -> None:
        """Wait until all runs have finished, or nothing changes any more."""
        moved, before = time.monotonic(), -1
        while time.monotonic() < moved + SETTLE_TIMEOUT_S / 2:
            left = fetch(direct_url, OPEN)[0][0]
            if left == 0 and self._feeder.scheduled == 0:
                return
            if left != before:
                moved, before = time.monotonic(), left
            try:
                self._sleep()
                self._pool.replace_exited()
            except KeyboardInterrupt:
                self._log("interrupted; judging what there is")
                return
