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
from holdfast.telemetry.metrics import GAUGES, NAMES

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
        oldest_ready: Callable[[], Mapping[str, float]],
        waits: Callable[[Iterable[str]], Mapping[str, float]],
    ) -> None:
        self.telemetry = telemetry
        self.event_trace = event_trace
        self._waits = waits
        self._queues = queues
        self._gauges = gauges
        self._oldest_ready = oldest_ready

    def start(self) -> None:
        GAUGES.add(self, self._gauges, self._read_oldest_ready)

    def stop(self) -> None:
        GAUGES.remove(self)

    def _read_oldest_ready(self) -> Mapping[str, float]:
        with suppress(StoreError):  # the gauge has no value while the database is unavailable
            return self._oldest_ready()
        return {}

    def claimed(self, attempts: Sequence[Attempt], started: int) -> None:
        """Record a claim that started at `started` (nanoseconds) and returned these attempts."""
        telemetry, tracing = self.telemetry, self.telemetry.tracing
        telemetry.measure("holdfast.claim.duration", (time.time_ns() - started) / 1e9)
        telemetry.measure("holdfast.claim.size", len(attempts))
        queues = self._queues
        names = [NAMES.bound((each.task.name, queues.get(each.claim.lane, ""))) for each in attempts]
        for pair, count in Counter(names).items():
            telemetry.measure("holdfast.runs.claimed", count, pair)
        stored = [stored_options(attempt.claim) for attempt in attempts]
        claim = None
        if tracing is not None:
            contexts = zip(attempts, stored, strict=True)
            spans = (tracing.context_of(each.claim.id, each.task.name, trace_of(options)) for each, options in contexts)
            claim = tracing.claim(started, len(attempts), spans)
        for attempt, pair, options in zip(attempts, names, stored, strict=True):
            queue = queues.get(attempt.claim.lane, "")
            attempt.telemetry = AttemptTelemetry(self, attempt, queue, pair, options, claim)

    def started(self, attempts: Sequence[Attempt]) -> None:
        """Record how long the runs of these attempts were ready. Reads the database, so it follows their start."""
        with suppress(StoreError):
            waits = self._waits(attempt.claim.id for attempt in attempts)
            for attempt in attempts:
                if attempt.claim.id in waits and attempt.telemetry is not None:
                    self.telemetry.measure("holdfast.run.wait", waits[attempt.claim.id], attempt.telemetry.names)

    def lease_missed(self) -> None:
        """Record a renewal of the lease that failed or came too late."""
        self.telemetry.measure("holdfast.lease.missed", 1)

    def committed(self, commands: int, attempts: Iterable[Attempt], started: int) -> None:
        """Record a commit of this many commands that started at `started` (nanoseconds)."""
        self.telemetry.measure("holdfast.commit.duration", (time.time_ns() - started) / 1e9)
        self.telemetry.measure("holdfast.commit.size", commands)
        tracing = self.telemetry.tracing
        if tracing is not None:
            watched = {id(each.telemetry): each.telemetry for each in attempts if each.telemetry is not None}
            spans = [each.span.get_span_context() for each in watched.values() if each.span is not None]
            tracing.commit(started, commands, len(watched), spans)


class AttemptTelemetry:
    """Records the span and the duration of one attempt."""

    __slots__ = (
        "_attributes", "_claim", "_context", "_ended", "_run", "_started_at", "_task", "_worker", "names", "span",
    )  # fmt: skip

    def __init__(
        self,
        telemetry: WorkerTelemetry,
        attempt: Attempt,
        queue: str,
        names: tuple[str, str],
        options: Mapping[str, Any],
        claimed_by: Any,
    ) -> None:
        claim = attempt.claim
        self._worker = telemetry
        self._run = claim.id
        self._task = attempt.task.name
        self.names = names
        self._context = trace_of(options)
        self._claim = claimed_by
        self._attributes = {
            "holdfast.run": claim.id, "holdfast.task": self._task, "holdfast.queue": queue,
            "holdfast.attempt": claim.attempt, "holdfast.worker": attempt.session,
        }  # fmt: skip
        more = (("tenant", claim.tenant), ("parent", claim.parent), ("node", options.get("node")))
        for name, value in more:
            if isinstance(value, str):
                self._attributes[f"holdfast.{name}"] = value
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
        error = None if end is None or end.error is None else msgspec.json.decode(end.error)
        outcome = "lost" if end is None else _outcome(end, error)
        telemetry = self._worker.telemetry
        telemetry.measure("holdfast.attempts", 1, self.names, outcome)
        if self._started_at:
            telemetry.measure("holdfast.attempt.duration", time.perf_counter() - self._started_at, self.names)
        if self.span is not None and telemetry.tracing is not None:
            self.span.set_attribute("holdfast.outcome", outcome)
            telemetry.tracing.end(self.span, _error_type(error) if outcome in FAILURE_KINDS else None)

    def log_fields(self) -> dict[str, str]:
        """Return the ids of the span, for lines that are logged outside it."""
        tracing = self._worker.telemetry.tracing
        return {} if tracing is None or self.span is None else tracing.log_fields(self.span)

    def step(self, name: str, key: str) -> StepTelemetry:
        return StepTelemetry(self._worker.telemetry, self.names, name, key)

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

    __slots__ = ("_names", "_span", "_started_at", "_telemetry", "_token")

    def __init__(self, telemetry: Telemetry, names: tuple[str, str], name: str, key: str) -> None:
        self._telemetry = telemetry
        self._names = names
        self._span: Any = None
        self._token: Any = None
        if telemetry.tracing is not None:
            self._span, self._token = telemetry.tracing.step(name, key)
        self._started_at = time.perf_counter()

    def end(self, tried: object) -> None:
        """Record the outcome; anything but a `StepResult` means that the step was stopped."""
        ended = isinstance(tried, StepResult)
        error = tried.error if isinstance(tried, StepResult) else None
        if error is not None:
            outcome = "timed_out" if error.code == "timeout" else "failed"
        else:
            outcome = "done" if ended else "stopped"
        self._telemetry.measure("holdfast.steps", 1, self._names, outcome)
        self._telemetry.measure("holdfast.step.duration", time.perf_counter() - self._started_at, self._names)
        if self._telemetry.tracing is not None and self._span is not None:
            self._span.set_attribute("holdfast.outcome", outcome)
            self._telemetry.tracing.end_step(self._span, self._token, None if error is None else error.type)


def stored_options(claim: Claim) -> dict[str, Any]:
    """Return the stored options of a run, which include the trace context in which it was enqueued."""
    try:
        options = {} if claim.options is None else msgspec.json.decode(claim.options)
    except msgspec.DecodeError:  # a foreign or corrupt row
        return {}
    return options if isinstance(options, dict) else {}


def trace_of(options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the trace context in which a run was enqueued."""
    context = options.get("trace")
    return context if isinstance(context, dict) else None


def _outcome(end: AttemptEnd, error: Mapping[str, Any] | None) -> str:
    if end.kind == "failed" and error is not None and error.get("code") == "timeout":
        return "timed_out"
    return end.kind


def _error_type(error: Mapping[str, Any] | None) -> str:
    """Return the type of an error, but not its message, which may contain secrets."""
    return "stopped" if error is None else str(error.get("type") or error.get("code"))
