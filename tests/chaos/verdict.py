"""The verdict on a chaos run: lost, duplicated and stuck work, stale writes, and wrongly failed runs.

Repeated effects are allowed if a fault explains them. An effect may be repeated as long as its step isn't recorded: by
a later attempt, or by an earlier one that was frozen in the middle. It may not be repeated after its result is durable,
and never within one attempt of one process. Jobs and compensations, which don't know the number of their attempt, may
have as many effects as there were claims. The writes of a transaction exist exactly once.

Culprits harm their workers on purpose and fail by their own policy. All other runs are innocent. An innocent run may be
charged with a crash only if its worker died of an external fault while it was the only run in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from tests.chaos.effects import Line
from tests.chaos.facts import FINAL, Facts, RunRow
from tests.chaos.workload import EXPECTED, Expected
from tests.support.charges import LOST, Charge
from tests.support.culprits import CULPRITS, kind_of

ENDS = ("done", "failed", "cancelled", "skipped")
RECOVERY_S = 5.0
"""The maximum time from the expiry of a lease to the return of its runs, without other faults."""


@dataclass
class Verdict:
    """The violations, one sentence each, and the counts of what the faults explain."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    wrongly_failed: list[str] = field(default_factory=list)
    effects: int = 0
    repeated: int = 0
    late: int = 0
    charged: int = 0
    """Charges of innocent runs that died alone, of an external fault."""

    @property
    def findings(self) -> dict[str, list[str]]:
        return {
            "lost": self.lost,
            "duplicated": self.duplicated,
            "stuck": self.stuck,
            "stale writes accepted": self.stale,
            "wrongly failed": self.wrongly_failed,
        }

    @property
    def good(self) -> bool:
        return not any(self.findings.values())


def judge(facts: Facts) -> Verdict:
    """Compare the ledger with the guarantees and with the database."""
    verdict = Verdict()
    by_mark: dict[str, list[RunRow]] = defaultdict(list)
    for run in facts.runs:
        by_mark[run.mark or ""].append(run)
    unmarked = by_mark.pop("", [])
    done: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in facts.lines:
        done[line.mark, line.step].append(line)
    rows = Counter(facts.rows)
    for mark in facts.acknowledged:
        _judge_tree(verdict, mark, by_mark, done, rows)
    verdict.duplicated += [
        f"{name} of {mark} committed {count} times" for (mark, name), count in rows.items() if count > 1
    ]
    verdict.duplicated += [f"{len(runs)} runs of {mark}" for mark, runs in by_mark.items() if len(runs) > 1]
    verdict.stuck += [f"run {run.id} is {run.state}" for run in unmarked if run.state not in FINAL]
    verdict.stuck += [f"run {run.id} still belongs to {run.session}" for run in facts.runs if run.session is not None]
    _judge_effects(verdict, done, {mark: runs[0].fence for mark, runs in by_mark.items()})
    _judge_records(verdict, facts)
    _judge_failures(verdict, facts)
    return verdict


def _judge_tree(verdict: Verdict, mark: str, by_mark: dict, done: dict, rows: Counter) -> None:
    """Check a root and its descendants."""
    if not by_mark.get(mark):
        verdict.lost.append(f"{mark} was acknowledged, but its run does not exist")
        return
    if kind_of(mark) in CULPRITS:
        _judge_culprit(verdict, mark, by_mark[mark][0])
        return
    expected = EXPECTED[kind_of(mark)]
    for suffix in sorted(expected.suffixes):
        _judge_run(verdict, mark + suffix, by_mark.get(mark + suffix, []), expected.state(suffix))
    if by_mark[mark][0].state not in FINAL:
        return
    for suffix, steps in expected.effects.items():
        verdict.lost += [
            f"no effect {step} of {mark + suffix}" for step in steps if not _did(done, mark + suffix, step)
        ]
    verdict.lost += [f"no row {name} of {mark}" for name in expected.rows if not rows[mark, name]]
    _judge_order(verdict, mark, expected, done)


def _judge_culprit(verdict: Verdict, mark: str, run: RunRow) -> None:
    """Check that a culprit ended by its own policy, or by an external crash."""
    culprit = CULPRITS[kind_of(mark)]
    if run.state not in FINAL:
        verdict.stuck.append(f"{mark} (run {run.id}) is {run.state}")
    elif run.state == "done" and culprit.survives:
        return
    elif run.state != "failed" or run.code not in (*culprit.codes, "crashed"):
        verdict.lost.append(f"{mark} (run {run.id}) is {run.state}, which isn't its own policy: {run.error}")


def _judge_run(verdict: Verdict, mark: str, runs: Sequence[RunRow], wanted: str) -> None:
    if not runs:
        verdict.lost.append(f"{mark} was never created")
    elif runs[0].state not in FINAL:
        verdict.stuck.append(f"{mark} (run {runs[0].id}) is {runs[0].state}")
    elif runs[0].state != wanted:
        verdict.lost.append(f"{mark} (run {runs[0].id}) is {runs[0].state} instead of {wanted}: {runs[0].error}")


def _judge_order(verdict: Verdict, mark: str, expected: Expected, done: dict) -> None:
    """Check that compensations ran in reverse order."""
    first = [_did(done, mark, step)[0].at for step in expected.in_order if _did(done, mark, step)]
    verdict.lost += [f"the order of {', '.join(expected.in_order)} of {mark}"] * (first != sorted(first))


def _did(done: dict[tuple[str, str], list[Line]], mark: str, step: str) -> list[Line]:
    return [line for line in done.get((mark, step), ()) if line.kind == "did"]


def _judge_effects(verdict: Verdict, done: dict[tuple[str, str], list[Line]], claims: dict[str, int]) -> None:
    """Check how often, by whom and under which key each effect was done."""
    owners: dict[str, tuple[str, str]] = {}
    for (mark, step), lines in done.items():
        did = [line for line in lines if line.kind == "did"]
        if not did:
            continue
        verdict.effects += len(did)
        verdict.repeated += len(did) - 1
        keys = {line.word for line in did}
        if len(keys) > 1 or owners.setdefault(did[0].word, (mark, step)) != (mark, step):
            verdict.duplicated.append(f"{step} of {mark} has no idempotency key of its own: {', '.join(sorted(keys))}")
        if did[0].attempt == 0:
            if len(did) > claims.get(mark, 0):
                verdict.duplicated.append(f"{step} of {mark} {len(did)} times in {claims.get(mark, 0)} claims")
        else:
            _judge_step(verdict, f"{step} of {mark}", lines)


def _judge_step(verdict: Verdict, what: str, lines: Sequence[Line]) -> None:
    """Check the lines of one step, in order."""
    results = {line.word for line in lines if line.kind == "kept"}
    if len(results) > 1:
        verdict.stale.append(f"{what} had several results: {', '.join(sorted(results))}")
    winner = int(next(iter(results)).split(":")[0]) if results else None
    kept = False
    seen: set[tuple[int, int]] = set()
    for line in lines:
        kept = kept or line.kind == "kept"
        if line.kind != "did":
            continue
        who = (line.attempt, line.pid)
        if who in seen or (kept and winner is not None and line.attempt >= winner):
            verdict.duplicated.append(f"{what} again in attempt {line.attempt}, process {line.pid}")
        elif winner is not None and line.attempt > winner:
            verdict.stale.append(f"{what} was done by attempt {line.attempt}, and the result is of {winner}")
        verdict.late += kept
        seen.add(who)


def _judge_records(verdict: Verdict, facts: Facts) -> None:
    """Check the database for writes under an old fence and for runs that ended twice."""
    fences = {run.id: run.fence for run in facts.runs}
    for (run, generation), group in groupby(facts.checkpoints, key=lambda row: (row.run, row.generation)):
        for before, after in pairwise(group):
            if after.fence < before.fence:
                verdict.stale.append(f"{after.key} of run {run}, generation {generation}, under an old fence")
    for run, entries in groupby(facts.history, key=lambda row: row.run):
        verdict.stale += _stale_entries(run, list(entries), fences.get(run, 0))
    ends = Counter(row.run for row in facts.history if row.kind in ENDS)
    verdict.duplicated += [f"run {run} ended {count} times" for run, count in ends.items() if count > 1]


def _judge_failures(verdict: Verdict, facts: Facts) -> None:
    """Check for innocent runs that failed or were charged with a crash of another run."""
    innocent = {run.id: run for run in facts.runs if kind_of(run.mark) not in CULPRITS}
    for run in innocent.values():
        if run.state != "failed":
            continue
        expected = EXPECTED.get(kind_of(run.mark))
        _, dot, name = (run.mark or "").partition(".")
        if expected is None or expected.state(dot + name) != "failed" or run.code == "crashed":
            verdict.wrongly_failed.append(f"{run.mark} (run {run.id}) failed: {run.error}")
    # A session dies once, but may report crashes of single runs before (a blocked event loop, a dead task process).
    # Those history entries carry its fence.
    crashes = [entry for entry in facts.history if entry.kind in LOST]
    reported = {(entry.run, entry.session) for entry in crashes if entry.fence is not None}
    died_with = Counter(entry.session for entry in crashes if entry.fence is None)
    charges_of = Counter(charge.session for charge in facts.charges if (charge.run, charge.session) not in reported)
    for charge in facts.charges:
        if charge.run not in innocent:
            continue
        what = f"{innocent[charge.run].mark} (run {charge.run}) was charged with the end of {charge.session}"
        together = max(died_with[charge.session], charges_of[charge.session])
        if together > 1:
            verdict.wrongly_failed.append(f"{what}, which had {together} runs")
        elif not _caused_from_outside(facts, charge):
            verdict.wrongly_failed.append(f"{what}, which had no external fault")
        else:
            verdict.charged += 1


def _caused_from_outside(facts: Facts, charge: Charge) -> bool:
    """Tell whether a fault hit the worker or its database shortly before."""
    earliest = charge.at - facts.lease - RECOVERY_S
    pid = int(str(charge.session).split(":")[1])
    hit = any(each.pid == pid and each.since <= charge.at and each.until >= earliest for each in facts.attacks)
    return hit or any(since <= charge.at and until >= earliest for since, until in facts.windows)


def _stale_entries(run: str, entries: Sequence, newest: int) -> Iterator[str]:
    fenced = [entry for entry in entries if entry.fence is not None]
    for before, after in pairwise(fenced):
        if after.fence < before.fence:
            yield f"{after.kind} of run {run} under an old fence"
    yield from (
        f"{entry.kind} of run {run} under fence {entry.fence} of {newest}"
        for entry in fenced
        if entry.kind in ENDS and entry.fence != newest
    )
