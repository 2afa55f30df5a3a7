"""One try of a run: what it is told to do, how it ended, and what that means for the run."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any, Literal, TypeAlias

from holdfast.errors import BadArguments, ErrorInfo, PayloadError, TaskError
from holdfast.model.codec import decode
from holdfast.model.failure import describe, to_json
from holdfast.model.retry import Retry
from holdfast.policy.outcome import Outcome, after_failure, after_timeout, payload_code
from holdfast.store import Claim, End
from holdfast.task.signature import Signature
from holdfast.task.task import Task

Order: TypeAlias = Literal["timeout", "deadline", "lost", "hand back"]
"""Why author code is told to stop."""


class Attempt:
    """One try. Ends once: by its author code, its timeout, its deadline, or the loss of its run."""

    __slots__ = (
        "claim",
        "ended",
        "handle",
        "lock",
        "order",
        "over",
        "retry",
        "session",
        "signature",
        "task",
        "timeout",
    )

    def __init__(self, claim: Claim, task: Task[..., Any], session: str) -> None:
        self.claim = claim
        self.task = task
        self.session = session
        assert isinstance(task.signature, Signature), f"{task.name} has no code here"
        self.signature = task.signature
        self.lock = threading.Lock()
        self.handle: asyncio.Task[None] | None = None
        self.order: Order | None = None
        self.ended = False  # its end was handed to the committer
        self.over = False  # author code has stopped
        self.retry = task.declaration.retry
        self.timeout = task.declaration.timeout
        if claim.options is not None:
            self._apply(decode(claim.options))

    def _apply(self, options: dict[str, Any]) -> None:
        """What was asked for at enqueue comes before the task's declaration."""
        if "retry" in options:
            self.retry = Retry.from_json(options["retry"])
        if "timeout" in options:
            self.timeout = options["timeout"]

    @property
    def label(self) -> str:
        return f"{self.task.name} {self.claim.id}"

    def done(self, result: str) -> End:
        return End(self.claim.id, self.claim.seq, self.claim.fence, "done", "done", result=result)

    def failed(self, exception: BaseException) -> End:
        """What follows from an exception of the author's code, or of reading its arguments or keeping its result."""
        if isinstance(exception, PayloadError):
            return self._end(Outcome(payload_code(exception)), describe(exception, payload_code(exception)))
        outcome = after_failure(self.retry, self.claim.failures, exception, random.random)
        return self._end(outcome, describe(exception, outcome.code))

    def misfit(self, exception: BadArguments | TaskError) -> End:
        """The kept arguments don't fit the code of this worker; trying again can't help before either changes."""
        return self._end(Outcome("bad_arguments"), describe(exception, "bad_arguments"))

    def timed_out(self, *, lingers: bool) -> End:
        seconds = (self.timeout or 0) / 1_000_000
        error = ErrorInfo("timeout", "TimeoutError", f"the attempt took longer than its timeout of {seconds:g} s")
        return self._end(after_timeout(self.retry, self.claim.failures, random.random), error, "timed_out", lingers)

    def overdue(self, *, lingers: bool) -> End:
        return self._end(Outcome("deadline"), deadline_error(), lingers=lingers)

    def handed_back(self, *, lingers: bool) -> End:
        claim = self.claim
        return End(claim.id, claim.seq, claim.fence, "handed_back", "ready", lingers=int(lingers))

    def stopped(self, order: Order, *, lingers: bool) -> End | None:
        """The end of an attempt that was told to stop; None where the run isn't ours any more."""
        if order == "lost":
            return None
        ends = {"timeout": self.timed_out, "deadline": self.overdue, "hand back": self.handed_back}
        return ends[order](lingers=lingers)

    def _end(
        self,
        outcome: Outcome,
        error: ErrorInfo,
        retry_kind: Literal["retrying", "timed_out"] = "retrying",
        lingers: bool = False,
    ) -> End:
        claim = self.claim
        text = to_json(error)
        if outcome.retry_in is None:
            return End(claim.id, claim.seq, claim.fence, "failed", "failed", error=text, failed=1, lingers=int(lingers))
        return End(
            claim.id, claim.seq, claim.fence, retry_kind, "scheduled", error=text, delay=outcome.retry_in, failed=1,
            lingers=int(lingers),
        )  # fmt: skip


def deadline_error() -> ErrorInfo:
    return ErrorInfo("deadline", "TimeoutError", "the run didn't end before its deadline")


def crash_error() -> ErrorInfo:
    message = "the workers that tried it died or lost their lease more often than max_crashes allows"
    return ErrorInfo("crashed", "Crashed", message)
