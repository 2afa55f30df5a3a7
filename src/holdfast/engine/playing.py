"""Plays durable functions: an attempt from its beginning to its suspension or end; or its past alone, to undo it.

To undo, the function is replayed as far as its past goes, so that it registers its compensations again (they may be
closures); then those are run in reverse order, each recorded. Author code runs on the loop here; its plain twin, which
needs no order among branches, is at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.blocking import BlockingConductor, Unwind
from holdfast.engine.conductor import Conductor
from holdfast.engine.effects import Tried, Try
from holdfast.engine.lingering import LINGER, QUIET_TURNS
from holdfast.engine.past import Registered
from holdfast.engine.score import Score
from holdfast.errors import ErrorInfo
from holdfast.model.retry import Retry
from holdfast.store import End
from holdfast.store.commands import Record
from holdfast.task.context import Context
from holdfast.task.functions import inspect_function, is_async
from holdfast.task.operations import Step
from holdfast.task.scope import Scope, current_scope
from holdfast.task.sync_context import SyncContext

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


STILL_LOOKS = 50
"""How many looks, a hundredth of a second apart, a function may stand still behind what is on record."""


def body_scope(attempt: Attempt) -> Scope:
    claim = attempt.claim
    return Scope(claim.id, durable=True, generation=claim.generation, stop=attempt.stop_signal)


# On the loop


async def play(conductor: Conductor, arguments: Arguments) -> End:
    """Run a durable function as far as it goes."""
    attempt = conductor.current
    if attempt.claim.ending is not None:
        try:
            return await _undo(conductor, arguments)
        except BaseException as error:  # mostly the attempt was stopped; then its order decides how it ends
            return attempt.undo_interrupted(error)
    args, kwargs = arguments
    token = current_scope.set(body_scope(attempt))
    try:
        end = attempt.returned(await attempt.signature.fn(Context(conductor), *args, **kwargs))
    except BaseException as error:
        end = ended_badly(attempt, conductor.score, error)
    finally:
        current_scope.reset(token)
        conductor.close()
    return with_drift(end, conductor.score)


async def _undo(conductor: Conductor, arguments: Arguments) -> End:
    await replay(conductor, arguments)
    missing = missing_undos(conductor.score)
    if missing:
        return _cannot_undo(conductor.current, missing)
    conductor.reopen()
    for registered in _to_undo(conductor.score):
        tried = await conductor.run_step(Try(_as_step(registered), _undone_key(registered)))
        if tried.error is not None:
            return conductor.current.undo_failed(registered.key, tried.error)
        await conductor.write(_undone(conductor.score, registered, tried))
    return conductor.current.undone()


class Replayed(NamedTuple):
    """Whether a function came to its end in a replay, and what it raised then."""

    ended: bool
    error: BaseException | None = None


async def replay(conductor: Conductor, arguments: Arguments) -> Replayed:
    """Let a durable function do again what is on record, and nothing new."""
    args, kwargs = arguments
    token = current_scope.set(body_scope(conductor.current))
    try:
        body = asyncio.ensure_future(conductor.current.signature.fn(Context(conductor), *args, **kwargs))
    finally:
        current_scope.reset(token)
    try:
        await _until_quiet(conductor, body)
        ended = body.done()  # what comes out of it later is our doing
    finally:
        conductor.close()
        body.cancel()
        await asyncio.wait([body])
    error = None if body.cancelled() else body.exception()
    return Replayed(ended, error if ended else None)


async def _until_quiet(conductor: Conductor, body: asyncio.Future[Any]) -> None:
    """Until the function has ended, or can't go on, and no branch of it moves any more. One that does something of its
    own behind all that has to be undone isn't waited for."""
    still = 0
    while not body.done():
        moves = conductor.moves
        await asyncio.sleep(LINGER / 5)
        for _ in range(QUIET_TURNS):
            await asyncio.sleep(0)
        still = still + 1 if conductor.moves == moves and conductor.quiet else 0
        if still and conductor.stuck:
            return
        if still > STILL_LOOKS and conductor.current.claim.ending is not None and not missing_undos(conductor.score):
            return


# In a thread


def play_plainly(conductor: BlockingConductor, arguments: Arguments) -> End:
    """Run a plain durable function as far as it goes."""
    attempt = conductor.current
    if attempt.claim.ending is not None:
        try:
            return _undo_plainly(conductor, arguments)
        except BaseException as error:  # mostly the attempt was stopped; then its order decides how it ends
            return attempt.undo_interrupted(error)
    args, kwargs = arguments
    token = current_scope.set(body_scope(attempt))
    try:
        end = attempt.returned(attempt.signature.fn(SyncContext(conductor), *args, **kwargs))
    except Unwind:
        end = attempt.handed_back(lingers=False)  # how it really ended, the order that it got says
    except BaseException as error:
        end = ended_badly(attempt, conductor.score, error)
    finally:
        current_scope.reset(token)
        conductor.close()
    return with_drift(end, conductor.score)


def replay_plainly(conductor: BlockingConductor, arguments: Arguments) -> Replayed:
    args, kwargs = arguments
    token = current_scope.set(body_scope(conductor.current))
    error: BaseException | None = None
    try:
        conductor.current.signature.fn(SyncContext(conductor), *args, **kwargs)
    except BaseException as raised:
        error = raised
    finally:
        current_scope.reset(token)
    return Replayed(False) if conductor.stuck else Replayed(True, error)


def _undo_plainly(conductor: BlockingConductor, arguments: Arguments) -> End:
    replay_plainly(conductor, arguments)
    missing = missing_undos(conductor.score)
    if missing:
        return _cannot_undo(conductor.current, missing)
    for registered in _to_undo(conductor.score):
        tried = conductor.run_step(Try(_as_step(registered), _undone_key(registered)))
        if tried.error is not None:
            return conductor.current.undo_failed(registered.key, tried.error)
        conductor.write(_undone(conductor.score, registered, tried))
    return conductor.current.undone()


# Shared


def ended_badly(attempt: Attempt, score: Score, error: BaseException) -> End:
    """What follows from an exception of the function; steps whose failure it was are tried again next time."""
    end = attempt.failed(error)
    end.forget = score.forgotten(error)
    return end


def with_drift(end: End, score: Score) -> End:
    drift = score.past.drift()
    if drift:
        end.drift = msgspec.json.encode({"steps": drift}).decode()
    return end


def _to_undo(score: Score) -> list[Registered]:
    """What is still to be undone, the last first."""
    todo = [registered for registered in score.registered if registered.n not in score.past.undone]
    return sorted(todo, key=lambda registered: -registered.n)


def missing_undos(score: Score) -> list[str]:
    """Steps that are to be undone, and that the function of now doesn't come by any more, or has no undo for."""
    unasked = [(kept.n, kept.key) for kept in score.past.unasked.values() if kept.undo]
    return [key for n, key in sorted(unasked + score.without_undo) if n not in score.past.undone]


def _cannot_undo(attempt: Attempt, keys: list[str]) -> End:
    message = f"its compensation isn't in the code any more; put it back, and retry the run; others too: {keys[1:]}"
    return attempt.undo_failed(keys[0], ErrorInfo("undo", "TaskError", message))


def _as_step(registered: Registered) -> Step:
    """A compensation as a step: retried as its step would be, and otherwise as a task."""
    step = registered.step
    fn: Callable[..., Any] = registered.call
    if step is not None and step.undo is not None and is_async(step.undo):
        fn = partial(_awaited, registered.call)
    name = step.name if step is not None else registered.key
    retry = step.retry if step is not None and step.retry is not None else Retry()
    return Step(name, "", fn, inspect_function(fn), retry=retry, timeout=step.timeout if step is not None else None)


async def _awaited(call: Callable[[], Any]) -> None:
    await call()


def _undone(score: Score, registered: Registered, tried: Tried) -> Record:
    return Record(*score.held, score.number(), _undone_key(registered), "undone", str(registered.n), tried.took)


def _undone_key(registered: Registered) -> str:
    """Not the step's own: an outside system would take the one for a repeat of the other."""
    return f"$undone:{registered.key}"
