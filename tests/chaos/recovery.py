"""How long it took until a killed worker's runs continued on another worker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.effects import Line
from tests.chaos.facts import Entry, Facts
from tests.support.charges import LOST

RECONNECT_S = 2.0  # time in which workers reconnect to a database


@dataclass(frozen=True)
class Recovery:
    """Seconds from a kill to the next line of each run in the ledger.

    `undisturbed` are those with a healthy database, no pause and no second lost worker. `isolated` are undisturbed
    too, but of runs that had just lost another worker and therefore waited for a process of their own.
    """

    everything: Sequence[float]
    undisturbed: Sequence[float]
    slowest: str = ""
    """A description of the slowest undisturbed one."""
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
            continue  # not killed, or its lease had expired before
        after = (line for line in signs[marks[entry.run]] if line.at > since and line.pid != pid)
        sign = next(after, None)
        if sign is None:
            continue
        resumed = sign.at
        everything.append(resumed - since)
        lost_again = sum(since < at < resumed for at in lost[entry.run]) > 1
        outages = any(start < resumed and end + RECONNECT_S > since for start, end in facts.windows)
        paused = any(start < resumed and end > since for start, end in facts.pauses)
        if lost_again or outages or paused:
            continue
        if (entry.run, entry.n) in again:
            isolated.append(resumed - since)
        else:
            returned = f"{sign.mark}, of process {pid}, returned after {entry.at - since:.2f} s"
            undisturbed.append((resumed - since, f"{returned}, resumed by {sign.pid} at {resumed:.2f}"))
    undisturbed.sort()
    slowest = undisturbed[-1][1] if undisturbed else ""
    return Recovery(sorted(everything), [seconds for seconds, _ in undisturbed], slowest, sorted(isolated))


def _lost_in_a_row(before: Entry, after: Entry) -> bool:
    return before.run == after.run and before.kind in LOST and after.kind in LOST


def returns(facts: Facts, outages: Sequence[tuple[float, float]]) -> Sequence[float]:
    """Return the seconds from the start of each outage to each worker's next durable step.

    Workers without a step before the next outage, and those that another fault hits meanwhile, are left out.
    """
    kept: dict[int, list[float]] = defaultdict(list)
    for line in facts.lines:
        if line.kind == "kept":
            kept[line.pid].append(line.at)
    found = []
    for number, (since, until) in enumerate(outages):
        over = outages[number + 1][0] if number + 1 < len(outages) else float("inf")
        others = [window for window in facts.windows if window[1] != until]
        for pid, times in kept.items():
            first = next((at for at in times if until < at < over), None)
            if first is None or times[0] > since:
                continue
            attacks = [(attack.since, attack.until) for attack in facts.attacks if attack.pid == pid]
            if not any(start < first and end + RECONNECT_S > since for start, end in (*attacks, *others)):
                found.append(first - since)
    return sorted(found)


def percentile(times: Sequence[float], fraction: float) -> float | None:
    """Return a percentile of sorted times, or None if there are none."""
    return times[min(len(times) - 1, int(fraction * len(times)))] if times else None
