"""One chaos run on one database, from the first worker to the verdict."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from holdfast import Holdfast
from tests.chaos.facts import FINAL, Facts, gather
from tests.chaos.faults import Fault, Storm, WorkerKilled, WorkerPaused, WorkerStopped, WorkerTold, faults_of_tasks
from tests.chaos.feeder import Feeder
from tests.chaos.houses import House
from tests.chaos.pool import Pool
from tests.chaos.workload import Workload
from tests.support.counting import ask
from tests.support.culprits import CULPRITS, HARMS, KILLS
from tests.support.ledger import Ledger

SETTLE_SECONDS = 120.0
LOOK = 0.2
STANDSTILL_S = 0.8
OPEN = "select count(*) from {}runs where state not in ('" + "', '".join(FINAL) + "')"


@dataclass(frozen=True)
class Setting:
    """How much of everything."""

    seconds: float
    seed: int
    workers: int = 4
    concurrency: int = 10
    lease: float = 3.0
    rate: float = 12.0
    most: int = 60
    worker_faults: bool = True


@dataclass
class Outcome:
    """What a trial came to, for the report."""

    facts: Facts
    faults: list[Fault]
    clocks_off: int
    failed_starts: int
    sessions_lost: int
    repeats: int
    tracebacks: list[str]
    errors: list[str]
    seconds: float
    settled: float
    stopped_early: bool
    harms: dict[str, int]
    """How often culprits did which harm, by the ledger."""
    ended_by_tasks: int


class Trial:
    """Everything that runs, as one thing to start, watch and end."""

    def __init__(self, house: House, folder: Path, setting: Setting, note: Callable[[str], None]) -> None:
        self._house = house
        self._setting = setting
        self._note = note
        self._ledger = Ledger(folder / "ledger")
        source = random.Random(setting.seed)
        self._pool = Pool(
            house.url, folder, setting.workers, setting.lease, setting.concurrency, random.Random(source.random())
        )
        self._workload = Workload(Holdfast(house.url), self._ledger, setting.lease)
        self._feeder = Feeder(self._workload, setting.rate, setting.most, random.Random(source.random()))
        kinds = (WorkerKilled, WorkerStopped, WorkerPaused, WorkerTold) if setting.worker_faults else ()
        of_workers = [kind(random.Random(source.random()), self._pool) for kind in kinds]
        self._of_house = list(house.faults(random.Random(source.random()), setting.lease))
        of_tasks = faults_of_tasks(random.Random(source.random()), self._feeder) if setting.worker_faults else []
        self._storm = Storm([*of_workers, *of_tasks, *self._of_house])
        self._standstills: list[tuple[float, float]] = []

    def run(self) -> Outcome:
        """To the end, or until Ctrl-C, which cuts the storm short: then everything has its time to come to rest."""
        since = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self._workload.app.close)
            stack.callback(self._feeder.close)
            stack.callback(self._pool.close)
            self._pool.start()
            self._feeder.start()
            self._storm.start()
            early = self._watch(since)
            weathered = time.monotonic()
            self._note("the storm is over; waiting until all that was begun has ended")
            self._storm.stop()
            self._feeder.finish()
            direct = stack.enter_context(Holdfast(self._house.direct))
            self._settle(direct)
            settled = time.monotonic()
            self._pool.close()
            facts = gather(direct, self._ledger, self._feeder.acknowledged)
        facts.kills = self._pool.kills
        facts.attacks = self._pool.attacks
        facts.lease = self._setting.lease
        meant = [window for fault in self._of_house if fault.outage for window in fault.times]
        facts.windows = [*meant, *self._house.unwell(), *self._standstills]
        harms = Counter(CULPRITS[line.step].harm for line in facts.lines if line.kind == "harm")
        deadly = {line.pid for line in facts.lines if line.kind == "harm" and CULPRITS[line.step].harm == KILLS}
        unexplained = [each for each in self._pool.ended_by_themselves if each.process.pid not in deadly]
        facts.ended_by_themselves = [str(member.log) for member in unexplained]
        return Outcome(
            facts,
            list(self._storm.faults),
            self._pool.clocks_off,
            self._pool.failed_starts,
            sum(text.count("session lost ") for _, text in self._pool.logs()),
            self._feeder.repeats,
            [str(path) for path, text in self._pool.logs() if "Traceback" in text],
            [*self._storm.errors, *self._feeder.errors, *self._house.damage()],
            weathered - since,
            settled - weathered,
            early,
            {harm: harms[harm] for harm in HARMS},
            len(self._pool.ended_by_themselves) - len(unexplained),
        )

    def _watch(self, since: float) -> bool:
        """Until the time is over; True when it was cut short."""
        told = 0
        try:
            while (passed := time.monotonic() - since) < self._setting.seconds and not self._house.enough():
                if self._storm.errors or self._feeder.errors:
                    return True
                self._rest()
                self._pool.tend()
                if passed // 10 > told:
                    told = int(passed // 10)
                    self._tell(passed)
        except KeyboardInterrupt:
            return True
        return False

    def _rest(self) -> None:
        """Pause until the next look, and notice when the whole machine stood still meanwhile."""
        since = time.monotonic()
        time.sleep(LOOK)
        if time.monotonic() - since > LOOK + STANDSTILL_S:
            self._standstills.append((since, time.monotonic()))

    def _tell(self, passed: float) -> None:
        fired = ", ".join(f"{fault.name.split(' (')[0]} {fault.fired}" for fault in self._storm.faults if fault.fired)
        self._note(
            f"{passed:.0f} of {self._setting.seconds:.0f} s: {len(self._feeder.acknowledged)} begun,"
            f" {self._feeder.unfinished} unfinished; {fired}"
        )

    def _settle(self, direct: Holdfast) -> None:
        """Until nothing is open, or nothing moves any more."""
        moved, before = time.monotonic(), -1
        while time.monotonic() < moved + SETTLE_SECONDS / 2:
            left = ask(direct, OPEN)[0][0]
            if left == 0 and self._feeder.promised == 0:
                return
            if left != before:
                moved, before = time.monotonic(), left
            try:
                self._rest()
                self._pool.tend()
            except KeyboardInterrupt:
                self._note("stopped; the verdict is on what there is")
                return
