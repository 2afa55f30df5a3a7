"""What a chaos run found, for people and as JSON."""

from __future__ import annotations

import json
from typing import Any

from tests.chaos.recovery import Recovery, measure, percentile, returns
from tests.chaos.trial import Outcome, Setting
from tests.chaos.verdict import Verdict, judge

SHOWN = 10
PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
CHARGED = "innocent runs charged when a fault killed them alone"
BACK = 10.0  # seconds after the primary's end until a worker's next durable write
ISOLATED_LEASES = 3.0  # from the kill: one until it is noticed, two until an isolated run has a process of its own
ALLOWED = 2.0  # seconds beyond the lease, for the p99 of undisturbed recoveries


class Report:
    """The verdict and the figures of one outcome."""

    def __init__(self, database: str, setting: Setting, outcome: Outcome) -> None:
        self._database = database
        self._setting = setting
        self._outcome = outcome
        self.verdict: Verdict = judge(outcome.facts)
        self.recovery: Recovery = measure(outcome.facts)
        taken_over = [window for fault in outcome.faults if fault.taken_over for window in fault.times]
        self.returns = returns(outcome.facts, taken_over)
        self.wrong = self._wrong()

    @property
    def good(self) -> bool:
        return self.verdict.good and not self.wrong

    def _wrong(self) -> list[str]:
        """What is wrong beyond what the verdict counts."""
        found = [f"a worker ended by itself: {path}" for path in self._outcome.facts.ended_by_themselves]
        found += [f"a traceback in {path}" for path in self._outcome.tracebacks]
        found += self._outcome.errors
        if not self._outcome.facts.acknowledged:
            found.append("nothing was begun: there is nothing to judge")
        slowest, most = percentile(self.recovery.undisturbed, 0.99), self._setting.lease + ALLOWED
        if slowest is not None and slowest > most:
            what = f"p99 of undisturbed recoveries is {slowest:.1f} s, more than the lease + 2 s ({most:g} s)"
            found.append(f"{what}; the slowest: {self.recovery.slowest}")
        slowest, most = percentile(self.recovery.isolated, 0.99), ISOLATED_LEASES * self._setting.lease
        if slowest is not None and slowest > most:
            found.append(f"p99 of isolated runs' recoveries is {slowest:.1f} s, more than {most:g} s")
        if self.returns and self.returns[-1] > BACK:
            found.append(f"a worker was back {self.returns[-1]:.1f} s after a failover, later than {BACK:g} s")
        return found

    def as_data(self) -> dict[str, Any]:
        outcome, facts, verdict = self._outcome, self._outcome.facts, self.verdict
        return {
            "database": self._database,
            "seed": self._setting.seed,
            "lease": self._setting.lease,
            "workers": self._setting.workers,
            "seconds": round(outcome.seconds, 1),
            "stopped early": outcome.stopped_early,
            "seconds until quiet": round(outcome.settled, 1),
            "roots": len(facts.acknowledged),
            "runs": len(facts.runs),
            "effects": verdict.effects,
            "effects repeated, explained": verdict.repeated,
            "effects of frozen attempts, explained": verdict.late,
            CHARGED: verdict.charged,
            "verdict": {name: len(found) for name, found in verdict.findings.items()},
            "found": {name: found for name, found in verdict.findings.items() if found},
            "also wrong": self.wrong,
            "faults": {fault.name: fault.missing or fault.fired for fault in outcome.faults}
            | {"workers with a clock off by up to ten minutes": outcome.clocks_off},
            "harm done by tasks": outcome.harms,
            "workers ended by tasks": outcome.ended_by_tasks,
            "starts without a database": outcome.failed_starts,
            "sessions lost": outcome.sessions_lost,
            "calls repeated by the client": outcome.repeats,
            "recovery": {
                "all": _percentiles(self.recovery.everything),
                "undisturbed": _percentiles(self.recovery.undisturbed),
                "isolated": _percentiles(self.recovery.isolated),
            },
            "workers back after a failover": _percentiles(self.returns),
        }

    def as_json(self) -> str:
        return json.dumps(self.as_data(), indent=2)

    def as_text(self) -> str:
        data = self.as_data()
        head = (
            f"{self._database}, seed {data['seed']}: {data['seconds']:.0f} s of faults; {data['workers']} workers,"
            f" a lease of {data['lease']:g} s; quiet {data['seconds until quiet']:.0f} s later\n"
            f"{data['roots']} roots, {data['runs']} runs, {data['effects']} effects; explained by faults:"
            f" {data['effects repeated, explained']} repeated, {data['effects of frozen attempts, explained']} of them"
            f" late, by frozen attempts; {data[CHARGED]} innocent runs charged with a crash of their worker when they"
            " were alone in it"
        )
        lines = [
            head,
            "",
            *(f"  {name:<50} {fired:>8}" for name, fired in data["faults"].items()),
            *(f"  {f'(attempts of a task that {harm})':<50} {n:>8}" for harm, n in data["harm done by tasks"].items()),
            f"  {'(workers ended by a task)':<50} {data['workers ended by tasks']:>8}",
            f"  {'(starts of workers refused for want of a database)':<50} {data['starts without a database']:>8}",
            f"  {'(sessions lost by workers that came back)':<50} {data['sessions lost']:>8}",
            "",
            *(_line(f"recovery of killed workers' runs, {name}", found) for name, found in data["recovery"].items()),
            *([_line("workers back after a failover", data["workers back after a failover"])] if self.returns else []),
            "",
            *(f"  {name:<50} {count:>8}" for name, count in data["verdict"].items()),
            *(f"    {name}: {what}" for name, found in data["found"].items() for what in found[:SHOWN]),
            *(f"  wrong: {what}" for what in self.wrong),
            "",
            "verdict: " + ("good" if self.good else "BAD"),
        ]
        return "\n".join(lines)


def _percentiles(times: Any) -> dict[str, float]:
    found = {name: percentile(times, part) for name, part in PARTS.items()}
    return {"count": len(times)} | {name: round(value, 2) for name, value in found.items() if value is not None}


def _line(name: str, found: dict[str, float]) -> str:
    figures = "  ".join(f"{key} {value:g} s" for key, value in found.items() if key != "count")
    return f"  {name} ({found['count']}): {figures or 'none'}"
