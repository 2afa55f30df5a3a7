"""Run seeds of the simulation: `python -m tests.proof.simulate --seeds 10000`, or only one: `--seed 17 --trace`.

A seed that violates an invariant is printed with the command that reproduces it, and the exit code is 1.
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

from tests.proof.environment import Environment
from tests.proof.local_clients import LocalSimulation
from tests.proof.simulation import Simulation, Violation

SEEDS_PER_CHUNK = 25


class SeedResult(NamedTuple):
    """The result of a seed."""

    seed: int
    digest: str
    steps: int
    faults: dict[str, int]
    violation: str | None = None
    options: str = ""

    def replay(self) -> str:
        return f"python -m tests.proof.simulate {self.options}--seed {self.seed} --trace"


@cache
def environment() -> Environment:
    """Return the environment of this process. Creating it takes as long as a few seeds."""
    return Environment()


def run_seed(seed: int, show_trace: bool = False, *, local_clients: bool = False) -> SeedResult:
    """Run one seed in this process. `local_clients`: the clients are in the processes of the workers."""
    simulation = (LocalSimulation if local_clients else Simulation)(environment(), seed, show_trace)
    violation = None
    try:
        simulation.run()
    except Violation as found:
        violation = found.what
    options = "--local-clients " if local_clients else ""
    return SeedResult(seed, simulation.digest(), simulation.steps, simulation.counts, violation, options)


def run_seeds(seeds: Iterable[int], *, local_clients: bool = False) -> list[SeedResult]:
    return [run_seed(seed, local_clients=local_clients) for seed in seeds]


def run_many(seeds: range, processes: int, *, local_clients: bool = False) -> Iterator[SeedResult]:
    """Run seeds in several processes and yield the results in order."""
    chunks = [seeds[at : at + SEEDS_PER_CHUNK] for at in range(0, len(seeds), SEEDS_PER_CHUNK)]
    with ProcessPoolExecutor(processes) as pool:
        for result in pool.map(partial(run_seeds, local_clients=local_clients), chunks):
            yield from result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print each step")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="number of seeds (default: 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="first seed (default: 0)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="number of processes (default: 2)")
    parser.add_argument("--local-clients", action="store_true", help="put the clients into the workers' processes")
    given = parser.parse_args(argv)
    show = partial(print, flush=True)
    if given.seed is not None:
        result = run_seed(given.seed, given.trace, local_clients=given.local_clients)
        show(f"seed {result.seed}: {result.steps} steps, trace {result.digest}, faults {result.faults}")
        if result.violation:
            show(f"violation: {result.violation}")
        return 1 if result.violation else 0
    try:
        seeds = range(given.first, given.first + given.seeds)
        return report_seeds(run_many(seeds, given.processes, local_clients=given.local_clients), show)
    except KeyboardInterrupt:
        show("interrupted")
        return 130


def report_seeds(seeds: Iterable[SeedResult], show: partial[None]) -> int:
    started = time.monotonic()
    faults: Counter[str] = Counter()
    count = steps = violations = 0
    for result in seeds:
        count += 1
        steps += result.steps
        faults.update(result.faults)
        if result.violation:
            violations += 1
            show(f"seed {result.seed}: {result.violation}\n  reproduce with: {result.replay()}")
        if count % 1000 == 0:
            show(f"{count} seeds, {violations} violations, {time.monotonic() - started:.0f} s")
    seconds = time.monotonic() - started
    pace = count / max(seconds, 0.001) * 60
    show(f"{count} seeds, {steps} steps, {sum(faults.values())} faults {dict(sorted(faults.items()))}")
    show(f"{violations} violations; {seconds:.0f} s, {pace:.0f} seeds a minute")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
