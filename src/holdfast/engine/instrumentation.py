"""Spans and metrics of claims, attempts, steps and commits.

If telemetry is off, a worker has no `WorkerTelemetry`, and its attempts have no `AttemptTelemetry`.
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
from holdfast.store import AttemptEnd, Claim
from holdfast.telemetry.backends import Telemetry
from holdfast.telemetry.metrics import GAUGES

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

FAILURE_KINDS = ("failed", "retrying", "timed_out", "crashed", "undoing")


class WorkerTelemetry:
    """Records the spans and metrics of one worker."""

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
        """Record a claim that started at `started` (nanoseconds) and returned these attempts."""
        self.telemetry.measure("holdfast.claim.duration", (time.time_ns() - started) / 1e9)
        for task, count in Counter(attempt.task.name for attempt in attempts).items():
            self.telemetry.measure("holdfast.runs.claimed", count, task=task)
        contexts = [stored_context(attempt.claim) for attempt in attempts]
        claim, tracing = None, self.telemetry.tracing
        if tracing is not None:
            made_in = zip(attempts, contexts, strict=True)
            spans = (tracing.context_of(each.claim.id, each.task.name, context) for each, context in made_in)
            claim = tracing.batch("claim", started, {"holdfast.runs": len(attempts)}, spans)
        for attempt, context in zip(attempts, contexts, strict=True):
            attempt.telemetry = AttemptTelemetry(
                self, attempt, self._queues.get(attempt.claim.lane, ""), context, claim
            )

    def committed(self, commands: int, attempts: Iterable[Attempt], started: int) -> None:
        """Record a commit of this many commands that started at `started` (nanoseconds)."""
        self.telemetry.measure("holdfast.commit.duration", (time.time_ns() - started) / 1e9)
        self.telemetry.measure("holdfast.commit.size", commands)
        tracing = self.telemetry.tracing
        if tracing is not None:
            watched = {id(each.telemetry): each.telemetry for each in attempts if each.telemetry is not None}
            spans = [each.span.get_span_context() for each in watched.values() if each.span is not None]
            tracing.batch("commit", started, {"holdfast.commands": commands, "holdfast.runs": len(watched)}, spans)


class AttemptTelemetry:
    """Records the span and the duration of one attempt."""

    __slots__ = ("_attributes", "_claim", "_context", "_ended", "_run", "_started_at", "_task", "_worker", "span")

    def __init__(
        self, telemetry: WorkerTelemetry, attempt: Attempt, queue: str, context: dict[str, str] | None, claimed_by: Any
    ) -> None:
        claim = attempt.claim
        self._worker = telemetry
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
        self._ended = False
        self._started_at = 0.0
        self.span: Any = None

    def begin(self) -> None:
        """Start the span, in the thread or asyncio task that runs user code."""
        self._started_at = time.perf_counter()
        tracing = self._worker.telemetry.tracing
        if tracing is not None:
            self.span = tracing.attempt(self._run, self._task, self._context, self._claim, self._attributes)

    def context(self) -> dict[str, str] | None:
        """Return the trace context for user code in another process."""
        tracing = self._worker.telemetry.tracing
        return None if tracing is None else tracing.current_context()

    def end(self, end: AttemptEnd | None) -> None:
        """Record the attempt's first end; without an end its run was lost."""
        if self._ended:
            return
        self._ended = True
        outcome = "lost" if end is None else end.kind
        telemetry = self._worker.telemetry
        telemetry.measure("holdfast.attempts", 1, task=self._task, outcome=outcome)
        if self._started_at:
            telemetry.measure("holdfast.attempt.duration", time.perf_counter() - self._started_at, task=self._task)
        if self.span is not None and telemetry.tracing is not None:
            self.span.set_attribute("holdfast.outcome", outcome)
            telemetry.tracing.end(self.span, _error_type(end) if outcome in FAILURE_KINDS else None)

    def step(self, name: str, key: str) -> StepTelemetry:
        return StepTelemetry(self._worker.telemetry, self._task, name, key)

    @property
    def link(self) -> Callable[[str], None] | None:
        """A function that links the span to the emitter of an event that the attempt waited for; None without spans.

        The function takes the wait's target and reads the database.
        """
        return None if self.span is None else self._link

    def _link(self, target: str) -> None:
        tracing = self._worker.telemetry.tracing
        with suppress(StoreError):  # the span does without the link
            context = self._worker.event_trace(target)
            if context is not None and tracing is not None:
                tracing.link(self.span, msgspec.json.decode(context))


class StepTelemetry:
    """Records one step, from its first try to its last."""

    __slots__ = ("_span", "_started_at", "_task", "_telemetry", "_token")

    def __init__(self, telemetry: Telemetry, task: str, name: str, key: str) -> None:
        self._telemetry = telemetry
        self._task = task
        self._span: Any = None
        self._token: Any = None
        if telemetry.tracing is not None:
            self._span, self._token = telemetry.tracing.step(name, key)
        self._started_at = time.perf_counter()

    def end(self, tried: StepResult | float | None) -> None:
        """Record the outcome; anything but a `StepResult` means that the step was stopped."""
        ended = isinstance(tried, StepResult)
        error = tried.error if isinstance(tried, StepResult) else None
        outcome = "stopped" if not ended else "done" if error is None else "failed"
        self._telemetry.measure("holdfast.steps", 1, task=self._task, outcome=outcome)
        self._telemetry.measure("holdfast.step.duration", time.perf_counter() - self._started_at, task=self._task)
        if self._telemetry.tracing is not None and self._span is not None:
            self._span.set_attribute("holdfast.outcome", outcome)
            self._telemetry.tracing.end_step(self._span, self._token, None if error is None else error.type)


def stored_context(claim: Claim) -> dict[str, str] | None:
    """Return the trace context in which a run was enqueued."""
    try:
        options = {} if claim.options is None else msgspec.json.decode(claim.options)
        context = options.get("trace")
    except (msgspec.DecodeError, AttributeError):  # a foreign or corrupt row
        return None
    return context if isinstance(context, dict) else None


def _error_type(end: AttemptEnd | None) -> str:
    """Return the type of an error, but not its message, which may contain secrets."""
    if end is None or end.error is None:
        return "stopped"
    error = msgspec.json.decode(end.error)
    return str(error.get("type") or error.get("code"))
