"""How long it took until a killed worker's runs went on elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.effects import Line
from tests.chaos.facts import Entry, Facts
from tests.support.charges import LOST

AFTERMATH = 2.0  # seconds in which workers find back to a database


@dataclass(frozen=True)
class Recovery:
    """Seconds from the kill to the next sign of a run. Undisturbed: with the database well all the while, and no other
    worker lost that had taken it over. Isolated: undisturbed too, of runs that had just lost another worker, and so had
    to wait for a process of their own."""

    everything: Sequence[float]
    undisturbed: Sequence[float]
    slowest: str = ""
    """The longest of the undisturbed ones, in words."""
    isolated: Sequence[float] = ()


def measure(facts: Facts) -> Recovery:
    marks = {run.id: run.mark or "" for run in facts.runs}
    signs: dict[str, list[Line]] = defaultdict(list)
    for line in facts.lines:
        signs[line.mark].append(line)
    crashes = [entry for entry in facts.history if entry.kind in LOST and entry.session is not None]
    killed = {kill.pid: kill.at for kill in facts.kills}
    lost: dict[str, list[float]] = defaultdict(list)
    for entry in crashes:
        lost[entry.run].append(entry.at)
    again = {(after.run, after.n) for before, after in pairwise(facts.history) if _lost_in_a_row(before, after)}
    everything, undisturbed, isolated = [], [], []
    for entry in crashes:
        pid = int(str(entry.session).split(":")[1])
        since = killed.get(pid)
        if since is None or entry.at < since:
            continue  # not killed, or its lease had been over before
        after = (line for line in signs[marks[entry.run]] if line.at > since and line.pid != pid)
        sign = next(after, None)
        if sign is None:
            continue
        resumed = sign.at
        everything.append(resumed - since)
        lost_again = sum(since < at < resumed for at in lost[entry.run]) > 1
        unwell = any(start < resumed and end + AFTERMATH > since for start, end in facts.windows)
        if lost_again or unwell:
            continue
        if (entry.run, entry.n) in again:
            isolated.append(resumed - since)
        else:
            given_back = f"{sign.mark}, of process {pid}, given back after {entry.at - since:.2f} s"
            undisturbed.append((resumed - since, f"{given_back}, resumed by {sign.pid} at {resumed:.2f}"))
    undisturbed.sort()
    slowest = undisturbed[-1][1] if undisturbed else ""
    return Recovery(sorted(everything), [seconds for seconds, _ in undisturbed], slowest, sorted(isolated))


def _lost_in_a_row(before: Entry, after: Entry) -> bool:
    return before.run == after.run and before.kind in LOST and after.kind in LOST


def returns(facts: Facts, outages: Sequence[tuple[float, float]]) -> Sequence[float]:
    """How long after the beginning of each outage each worker had something durable again. The kept result of a step
    tells, after the end of the outage. Workers that had nothing to do until the next one are left out."""
    kept: dict[int, list[float]] = defaultdict(list)
    for line in facts.lines:
        if line.kind == "kept":
            kept[line.pid].append(line.at)
    found = []
    for number, (since, until) in enumerate(outages):
        over = outages[number + 1][0] if number + 1 < len(outages) else float("inf")
        for times in kept.values():
            first = next((at for at in times if until < at < over), None)
            if first is not None and times[0] < since:
                found.append(first - since)
    return sorted(found)


def percentile(times: Sequence[float], part: float) -> float | None:
    """Of sorted ones; None of none."""
    return times[min(len(times) - 1, int(part * len(times)))] if times else None
