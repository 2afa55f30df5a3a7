"""Plans of the operations with which a durable function talks to clients: set values, receive and answer asks.

They are like the plans in `plans.py`, which lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.durable.history import unexpected_payload
from holdfast.errors import PayloadError, TooLarge
from holdfast.model.asks import (
    ANY_ASK,
    AskAnswer,
    ReceivedAsk,
    Rejection,
    ask_context,
    ask_topic,
    decode_envelope,
    encode_rejection,
    reply_context,
)
from holdfast.model.codec import decode, decode_value
from holdfast.model.payloads import PayloadContext
from holdfast.store import commands
from holdfast.task import operations as op
from holdfast.telemetry import log

if TYPE_CHECKING:
    from holdfast.engine.durable.plans import OperationPlans, PlanExecutor


async def set_value(plans: OperationPlans, executor: PlanExecutor, operation: op.SetValue) -> Any:
    """Set a value of the run. A replay doesn't set it again."""
    claim, name = plans.claim, operation.name

    def command(n: int, key: str) -> commands.SetCommand:
        context = PayloadContext("value", claim.tenant, claim.id, name)
        text = plans.client.pack(operation.text, context, f"the value {name!r}")
        return commands.SetCommand(plans.run_token, n, key, name, text)

    _, refusal = await plans.perform_once(executor, operation.base, command)
    if refusal is not None:
        raise TooLarge(decode(refusal))


async def receive_ask(plans: OperationPlans, executor: PlanExecutor, operation: op.ReceiveAsk) -> Any:
    """Wait for the next ask; return it, and its payload decoded. An ask of another type is refused.

    With asks of all names, the caller decodes the payload: each name has its own type.
    """
    what = "an ask" if operation.name is None else f"ask {operation.name!r}"
    answer = operation.answer
    while True:
        received = await _next_ask(plans, executor, operation, answer, what)
        if operation.name is None:
            return received
        recorded = plans.history.unconsumed.get(f"{received.reply_base}#1")
        reason = ""
        if recorded is None or recorded.kind != "refused":
            try:
                return received, decode_value(received.payload, operation.type or Any)
            except PayloadError as error:
                if recorded is not None or plans.replay_only:  # The function has handled it, with another type.
                    raise unexpected_payload(what, error) from error
                reason = str(error)
            log.ask_refused(plans.claim.id, executor.task.name, plans.claim.attempt, received.name, reason)
        await _refuse(plans, executor, received, reason)
        answer = None


async def _next_ask(
    plans: OperationPlans, executor: PlanExecutor, operation: op.ReceiveAsk, answer: op.NewAnswer | None, what: str
) -> ReceivedAsk:
    claim, key = plans.claim, plans.history.next_key(operation.base)
    packed = None
    if answer is not None and key not in plans.history.unconsumed and key not in plans.history.open_waits:
        packed = pack_answer(plans, answer)  # It isn't durable yet: it becomes so with this wait.
    target = ANY_ASK if operation.name is None else ask_topic(operation.name)
    result = await plans.wait_for_outcome(
        executor, key, kind="message", target=target, delay=operation.timeout, answer=packed
    )
    return decode_envelope(plans.payload(result, ask_context(claim.tenant, claim.id), what))


async def _refuse(plans: OperationPlans, executor: PlanExecutor, ask: ReceivedAsk, reason: str) -> None:
    """Reject an ask because its payload doesn't have the expected type."""
    text = encode_rejection(Rejection(f"its payload doesn't have the expected type: {reason}"))
    packed = pack_answer(plans, op.NewAnswer(ask, "rejected", text))
    await plans.perform_once(
        executor,
        ask.reply_base,
        lambda n, key: commands.ReplyCommand(plans.run_token, n, key, packed, "refused"),
    )


async def reply(plans: OperationPlans, executor: PlanExecutor, operation: op.ReplyAsk) -> Any:
    """Answer an ask."""
    await plans.perform_once(
        executor,
        operation.base,
        lambda n, key: commands.ReplyCommand(plans.run_token, n, key, pack_answer(plans, operation.answer)),
    )


def pack_answer(plans: OperationPlans, answer: op.NewAnswer) -> AskAnswer:
    """Return an answer as it is stored."""
    claim, ask = plans.claim, answer.ask
    context = reply_context(claim.tenant, claim.id, ask.key)
    return AskAnswer(
        ask.key, ask.id, answer.kind, plans.client.pack(answer.text, context, f"the reply to ask {ask.name!r}")
    )
