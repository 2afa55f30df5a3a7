"""Runs seeds of the simulation: `python -m tests.proof.simulate --seeds 10000`, or one again: `--seed 17 --trace`.

A seed whose rules broke is printed with the command that replays it. The exit code says whether there was one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import NamedTuple

from tests.proof.simulation import Simulation, Violation
from tests.proof.stage import Stage

PORTION = 25


class Told(NamedTuple):
    """What a seed came to."""

    seed: int
    digest: str
    steps: int
    faults: dict[str, int]
    broken: str | None = None

    def replay(self) -> str:
        return f"python -m tests.proof.simulate --seed {self.seed} --trace"


@cache
def stage() -> Stage:
    """One for a process: it takes as long as a few seeds to make."""
    return Stage()


def run_seed(seed: int, tell: bool = False) -> Told:
    """One seed, in this process."""
    simulation = Simulation(stage(), seed, tell)
    try:
        simulation.run()
    except Violation as violation:
        return Told(seed, simulation.digest(), simulation.steps, simulation.counts, violation.what)
    return Told(seed, simulation.digest(), simulation.steps, simulation.counts)


def run_seeds(seeds: Iterable[int]) -> list[Told]:
    return [run_seed(seed) for seed in seeds]


def run_many(seeds: range, processes: int) -> Iterator[Told]:
    """Many seeds, spread over processes; in order."""
    portions = [seeds[at : at + PORTION] for at in range(0, len(seeds), PORTION)]
    with ProcessPoolExecutor(processes) as pool:
        for told in pool.map(run_seeds, portions):
            yield from told


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print each step")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="so many (default: 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="beginning with this one (default: 0)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at once (default: 2)")
    given = parser.parse_args(argv)
    say = partial(print, flush=True)
    if given.seed is not None:
        told = run_seed(given.seed, given.trace)
        say(f"seed {told.seed}: {told.steps} steps, trace {told.digest}, faults {told.faults}")
        if told.broken:
            say(f"broken: {told.broken}")
        return 1 if told.broken else 0
    try:
        return tell_of_many(run_many(range(given.first, given.first + given.seeds), given.processes), say)
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def tell_of_many(seeds: Iterable[Told], say: partial[None]) -> int:
    started = time.monotonic()
    faults: Counter[str] = Counter()
    count = steps = broken = 0
    for told in seeds:
        count += 1
        steps += told.steps
        faults.update(told.faults)
        if told.broken:
            broken += 1
            say(f"seed {told.seed} is broken: {told.broken}\n  again: {told.replay()}")
        if count % 1000 == 0:
            say(f"{count} seeds, {broken} broken, {time.monotonic() - started:.0f} s")
    seconds = time.monotonic() - started
    pace = count / max(seconds, 0.001) * 60
    say(f"{count} seeds, {steps} steps, {sum(faults.values())} faults {dict(sorted(faults.items()))}")
    say(f"{broken} broken; {seconds:.0f} s, {pace:.0f} seeds a minute")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
