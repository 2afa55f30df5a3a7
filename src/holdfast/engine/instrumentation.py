"""What the engine tells telemetry, where that is on: claims, attempts, steps and commits, as spans and as metrics.

A worker without telemetry has no `WorkerTelemetry`, and its attempts have no `AttemptTelemetry`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.durable.plans import StepResult
from holdfast.errors import StoreError
from holdfast.store import Claim, End
from holdfast.telemetry.backends import Telemetry
from holdfast.telemetry.metrics import GAUGES

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

now = time.time_ns
BADLY = ("failed", "retrying", "timed_out", "crashed", "undoing")


class WorkerTelemetry:
    """A worker's spans and metrics."""

    def __init__(
        self,
        telemetry: Telemetry,
        queues: Mapping[int, str],
        event_trace: Callable[[str], str | None],
        gauges: Callable[[], Mapping[str, float]],
    ) -> None:
        self.telemetry = telemetry
        self.event_trace = event_trace
        self._queues = queues
        self._gauges = gauges

    def start(self) -> None:
        GAUGES.add(self._gauges)

    def stop(self) -> None:
        GAUGES.remove(self._gauges)

    def claimed(self, attempts: Sequence[Attempt], started: int) -> None:
        """A claim that began then found these."""
        self.telemetry.measure("holdfast.claim.duration", (now() - started) / 1e9)
        for task, count in Counter(attempt.task.name for attempt in attempts).items():
            self.telemetry.measure("holdfast.runs.claimed", count, task=task)
        kept = [kept_context(attempt.claim) for attempt in attempts]
        claim, tracing = None, self.telemetry.tracing
        if tracing is not None:
            made_in = zip(attempts, kept, strict=True)
            spans = (tracing.context_of(each.claim.id, each.task.name, context) for each, context in made_in)
            claim = tracing.batch("claim", started, {"holdfast.runs": len(attempts)}, spans)
        for attempt, context in zip(attempts, kept, strict=True):
            attempt.watched = AttemptTelemetry(self, attempt, self._queues.get(attempt.claim.lane, ""), context, claim)

    def committed(self, commands: int, attempts: Iterable[Attempt], started: int) -> None:
        """A group of so many commands, about these attempts, that began to be written then, is durable."""
        self.telemetry.measure("holdfast.commit.duration", (now() - started) / 1e9)
        self.telemetry.measure("holdfast.commit.size", commands)
        tracing = self.telemetry.tracing
        if tracing is not None:
            watched = {id(each.watched): each.watched for each in attempts if each.watched is not None}
            spans = [each.span.get_span_context() for each in watched.values() if each.span is not None]
            tracing.batch("commit", started, {"holdfast.commands": commands, "holdfast.runs": len(watched)}, spans)


class AttemptTelemetry:
    """One attempt: its span, and how long it takes."""

    __slots__ = ("_attributes", "_claim", "_context", "_over", "_run", "_since", "_task", "_watching", "span")

    def __init__(
        self, telemetry: WorkerTelemetry, attempt: Attempt, queue: str, context: dict[str, str] | None, claimed_by: Any
    ) -> None:
        claim = attempt.claim
        self._watching = telemetry
        self._run = claim.id
        self._task = attempt.task.name
        self._context = context
        self._claim = claimed_by
        self._attributes = {
            "holdfast.run": claim.id, "holdfast.task": self._task, "holdfast.queue": queue,
            "holdfast.attempt": claim.attempt, "holdfast.worker": attempt.session,
        }  # fmt: skip
        if claim.tenant is not None:
            self._attributes["holdfast.tenant"] = claim.tenant
        self._over = False
        self._since = 0.0
        self.span: Any = None

    def begin(self) -> None:
        """Author code begins, in the thread or task that calls this."""
        self._since = time.perf_counter()
        tracing = self._watching.telemetry.tracing
        if tracing is not None:
            self.span = tracing.attempt(self._run, self._task, self._context, self._claim, self._attributes)

    def kept(self) -> dict[str, str] | None:
        """The context for author code in another process."""
        tracing = self._watching.telemetry.tracing
        return None if tracing is None else tracing.current_context()

    def end(self, end: End | None) -> None:
        """It is over, as it was said first; without an end its run was lost."""
        if self._over:
            return
        self._over = True
        outcome = "lost" if end is None else end.kind
        telemetry = self._watching.telemetry
        telemetry.measure("holdfast.attempts", 1, task=self._task, outcome=outcome)
        if self._since:
            telemetry.measure("holdfast.attempt.duration", time.perf_counter() - self._since, task=self._task)
        if self.span is not None and telemetry.tracing is not None:
            self.span.set_attribute("holdfast.outcome", outcome)
            telemetry.tracing.end(self.span, _trouble(end) if outcome in BADLY else None)

    def step(self, name: str, key: str) -> StepTelemetry:
        return StepTelemetry(self._watching.telemetry, self._task, name, key)

    @property
    def link(self) -> Callable[[str], None] | None:
        """What links the attempt to whoever emitted an event that it waited for, given as its target; it reads the
        database. None where there are no spans."""
        return None if self.span is None else self._link

    def _link(self, target: str) -> None:
        tracing = self._watching.telemetry.tracing
        with suppress(StoreError):  # a link less
            kept = self._watching.event_trace(target)
            if kept is not None and tracing is not None:
                tracing.link(self.span, msgspec.json.decode(kept))


class StepTelemetry:
    """A step's function, from its first try to its last."""

    __slots__ = ("_since", "_span", "_task", "_telemetry", "_token")

    def __init__(self, telemetry: Telemetry, task: str, name: str, key: str) -> None:
        self._telemetry = telemetry
        self._task = task
        self._span: Any = None
        self._token: Any = None
        if telemetry.tracing is not None:
            self._span, self._token = telemetry.tracing.step(name, key)
        self._since = time.perf_counter()

    def end(self, tried: StepResult | float | None) -> None:
        """What it came to; something else than `StepResult` where it was stopped."""
        ended = isinstance(tried, StepResult)
        error = tried.error if isinstance(tried, StepResult) else None
        outcome = "stopped" if not ended else "done" if error is None else "failed"
        self._telemetry.measure("holdfast.steps", 1, task=self._task, outcome=outcome)
        self._telemetry.measure("holdfast.step.duration", time.perf_counter() - self._since, task=self._task)
        if self._telemetry.tracing is not None and self._span is not None:
            self._span.set_attribute("holdfast.outcome", outcome)
            self._telemetry.tracing.end_step(self._span, self._token, None if error is None else error.type)


def kept_context(claim: Claim) -> dict[str, str] | None:
    """The context that a run was made in."""
    try:
        options = {} if claim.options is None else msgspec.json.decode(claim.options)
        kept = options.get("trace")
    except (msgspec.DecodeError, AttributeError):  # written by other code
        return None
    return kept if isinstance(kept, dict) else None


def _trouble(end: End | None) -> str:
    """The type of an error. Not its message: what is in it may be nobody's business."""
    if end is None or end.error is None:
        return "stopped"
    told = msgspec.json.decode(end.error)
    return str(told.get("type") or told.get("code"))
