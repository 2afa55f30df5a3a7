"""Gates: nodes that only somebody outside can finish, or their timeout.

Everything here runs inside a transaction of its caller's, which has locked the gate and the graphs above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.errors import BadArguments, ErrorInfo, KeyConflict, RunFinished
from holdfast.model.codec import canonical_text, encode
from holdfast.model.failure import error_from_json, error_to_json
from holdfast.model.names import actor_or_user
from holdfast.policy.json_schema import apply_defaults, find_mismatch
from holdfast.store.family import Ended, HeldRun, ids
from holdfast.store.part import Do, batch, record
from holdfast.store.releasing import Finish, finish


class Outcome(NamedTuple):
    """What somebody says of a gate: its output, or an error; and who it is."""

    state: str
    result: str | None
    error: str | None
    by: str


def completed(gate: str, output: Any, by: str | None) -> Outcome:
    """The gate is complete with an output; `by` is the user of this process where nobody is named."""
    return Outcome("done", encode(output, f"the output of gate {gate}"), None, actor_or_user(by))


def failed(gate: str, error: str, by: str | None) -> Outcome:
    """The gate has failed, with a message."""
    if not isinstance(error, str):
        raise BadArguments(f"gate {gate}: fail takes a message, not a {type(error).__name__}")
    return Outcome("failed", None, error_to_json(ErrorInfo("gate", "GateFailed", error)), actor_or_user(by))


def expire(do: Do, gates: Sequence[str]) -> list[Ended]:
    """Those of the gates that are past their time end as was said."""
    if not gates:
        return []
    finishes = []
    for id, graph, node, lifetime, plan in do("overdue_gates", rows=ids(gates)):
        outcome = msgspec.json.decode(plan)["on_timeout"]
        message = f"nobody completed gate {node} within {lifetime / 1_000_000:g} s"
        state = {"fail": "failed", "skip": "skipped", "complete": "done"}[outcome]
        code = "timeout" if outcome == "fail" else "condition"
        error = None if outcome == "complete" else error_to_json(ErrorInfo(code, "GateTimeout", message))
        result = "null" if outcome == "complete" else None
        entry = {"kind": "timed_out"}
        finishes.append(Finish(str(id), str(graph), node, state, result, error, entry=entry))
    return finish(do, finishes)


def conclude(do: Do, gate: HeldRun, outcome: Outcome, *, again: bool) -> tuple[bool, list[Ended]]:
    """Somebody completes a gate, or lets it fail; whether it was this call, and the end. One that isn't open yet keeps
    it until it is. `again`: this is a repeat, whose first try may have been carried out."""
    ((state, result, error, text),) = do("gate_state", id=gate.id)
    plan: dict[str, Any] = msgspec.json.decode(text)
    outcome = _checked(gate, plan, outcome)
    packed = None if outcome.result is None else do.payloads.pack(outcome.result, f"the output of {gate.node}")
    early = plan.get("early")
    if state == "blocked" and early is None:
        plan["early"] = {"state": outcome.state, "result": packed, "error": outcome.error}
        ((n,),) = do("keep_plan", id=gate.id, plan=msgspec.json.encode(plan).decode())
        data = msgspec.json.encode({"by": outcome.by, "outcome": outcome.state}).decode()
        do("add_history", rows=batch([record(gate.id, n, "concluded_early", 0, data=data)]))
        return True, []
    if state == "waiting":
        kind = "completed" if outcome.state == "done" else "failed"
        entry = {"kind": kind, "by": outcome.by}
        return True, finish(
            do, [Finish(gate.id, gate.parent, gate.node, outcome.state, packed, outcome.error, entry=entry)]
        )
    if early is not None and state == "blocked":
        state, result, error = early["state"], early["result"], early["error"]
    _refuse_other(gate, outcome, state, None if result is None else do.payloads.unpack(result), error)
    return again, []


def _checked(gate: HeldRun, plan: dict[str, Any], outcome: Outcome) -> Outcome:
    """The outcome, if it is of the gate's type, with what the type has defaults for."""
    schema = plan.get("schema")
    if outcome.result is None or schema is None:
        return outcome
    value = msgspec.json.decode(outcome.result)
    fault = find_mismatch(value, schema)
    if fault is not None:
        raise BadArguments(f"gate {gate.node} of run {gate.parent}: {fault}")
    return outcome._replace(result=msgspec.json.encode(apply_defaults(value, schema)).decode())


def _refuse_other(gate: HeldRun, outcome: Outcome, state: str, result: str | None, error: str | None) -> None:
    if state in ("skipped", "cancelled"):
        raise RunFinished(f"gate {gate.node} of run {gate.parent} is {state}: it can't be completed any more")
    if (
        state == "done"
        and outcome.state == "done"
        and canonical_text(result or "null") == canonical_text(outcome.result or "null")
    ):
        return
    if state == outcome.state == "failed" and _same_error(error, outcome.error):
        return
    how = "completed with another output" if outcome.state == "done" else "completed"
    if state == "failed":
        how = f"failed: {error_from_json(error or '').message}"
    raise KeyConflict(f"gate {gate.node} of run {gate.parent} was {how}", UUID(gate.id))


def _same_error(one: str | None, other: str | None) -> bool:
    first, second = error_from_json(one or ""), error_from_json(other or "")
    return (first.code, first.message) == (second.code, second.message)
