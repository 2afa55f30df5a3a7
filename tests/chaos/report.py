"""The report of a chaos run, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from tests.chaos.chaos_run import ChaosConfig, Outcome
from tests.chaos.recovery import Recovery, measure, percentile, returns
from tests.chaos.verdict import Verdict, judge

MAX_SHOWN = 10
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
CHARGED = "innocent runs charged when a fault killed them alone"
MAX_RETURN_S = 10.0  # from the death of the primary to a worker's next durable write
ISOLATED_LEASES = 3.0  # one until the kill is noticed, two until the run has a process of its own
RECOVERY_SLACK_S = 2.0  # allowed beyond the lease for the p99 of undisturbed recoveries


class Report:
    """The verdict and the statistics of a chaos run."""

    def __init__(self, database: str, config: ChaosConfig, outcome: Outcome) -> None:
        self._database = database
        self._config = config
        self._outcome = outcome
        self.verdict: Verdict = judge(outcome.facts)
        self.recovery: Recovery = measure(outcome.facts)
        failovers = [window for fault in outcome.faults for window in fault.failovers]
        self.returns = returns(outcome.facts, sorted(failovers))
        self.wrong = self._wrong()

    @property
    def good(self) -> bool:
        return self.verdict.good and not self.wrong

    def _wrong(self) -> list[str]:
        """Return problems that the verdict doesn't count."""
        found = [f"a worker exited unexpectedly: {path}" for path in self._outcome.facts.unexpected_exits]
        found += [f"a traceback in {path}" for path in self._outcome.tracebacks]
        found += self._outcome.errors
        if not self._outcome.facts.acknowledged:
            found.append("no run was started: nothing to judge")
        slowest, most = percentile(self.recovery.undisturbed, 0.99), self._config.lease + RECOVERY_SLACK_S
        if slowest is not None and slowest > most:
            what = f"p99 of undisturbed recoveries is {slowest:.1f} s, more than the lease + 2 s ({most:g} s)"
            found.append(f"{what}; the slowest: {self.recovery.slowest}")
        slowest, most = percentile(self.recovery.isolated, 0.99), ISOLATED_LEASES * self._config.lease
        if slowest is not None and slowest > most:
            found.append(f"p99 of isolated runs' recoveries is {slowest:.1f} s, more than {most:g} s")
        if self.returns and self.returns[-1] > MAX_RETURN_S:
            found.append(f"a worker was back {self.returns[-1]:.1f} s after a failover, later than {MAX_RETURN_S:g} s")
        return found

    def as_data(self) -> dict[str, Any]:
        outcome, facts, verdict = self._outcome, self._outcome.facts, self.verdict
        return {
            "database": self._database,
            "seed": self._config.seed,
            "lease": self._config.lease,
            "workers": self._config.workers,
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
            "faults": {fault.name: fault.unavailable or fault.fired for fault in outcome.faults}
            | {"workers with a clock skewed by up to ten minutes": outcome.skewed_clocks},
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
            f" a lease of {data['lease']:g} s; all runs finished {data['seconds until quiet']:.0f} s later\n"
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
            f"  {'(workers killed by a task)':<50} {data['workers ended by tasks']:>8}",
            f"  {'(worker starts that failed without a database)':<50} {data['starts without a database']:>8}",
            f"  {'(sessions lost by workers that came back)':<50} {data['sessions lost']:>8}",
            "",
            *(_line(f"recovery of killed workers' runs, {name}", found) for name, found in data["recovery"].items()),
            *([_line("workers back after a failover", data["workers back after a failover"])] if self.returns else []),
            "",
            *(f"  {name:<50} {count:>8}" for name, count in data["verdict"].items()),
            *(f"    {name}: {what}" for name, found in data["found"].items() for what in found[:MAX_SHOWN]),
            *(f"  wrong: {what}" for what in self.wrong),
            "",
            "verdict: " + ("good" if self.good else "BAD"),
        ]
        return "\n".join(lines)


def _percentiles(times: Any) -> dict[str, float]:
    found = {name: percentile(times, fraction) for name, fraction in PERCENTILES.items()}
    return {"count": len(times)} | {name: round(value, 2) for name, value in found.items() if value is not None}


def _line(name: str, found: dict[str, float]) -> str:
    values = "  ".join(f"{key} {value:g} s" for key, value in found.items() if key != "count")
    return f"  {name} ({found['count']}): {values or 'none'}"
