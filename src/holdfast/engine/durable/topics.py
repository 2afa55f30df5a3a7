"""Plans of `ctx.publish` and `ctx.next`. They are like the plans in `plans.py`, which lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from holdfast.model.codec import decode
from holdfast.model.ids import new_id_text
from holdfast.model.topics import Published, inbox_of, message_context, values_digest
from holdfast.store import commands
from holdfast.task import operations as op

if TYPE_CHECKING:
    from holdfast.engine.durable.plans import OperationPlans, PlanExecutor


async def publish(plans: OperationPlans, executor: PlanExecutor, operation: op.Publish) -> Any:
    """Publish a message. A replay doesn't publish it again."""
    topic, tenant = operation.topic, plans.claim.tenant
    plans.client.pack(operation.payload, message_context(tenant, topic), f"the message on topic {topic!r}")  # its size
    _, text = await plans.perform_once(
        executor,
        operation.base,
        lambda n, key: commands.PublishCommand(
            plans.run_token, n, key, new_id_text(), topic, tenant, operation.payload
        ),
    )
    id, runs, functions = decode(text)
    return Published(UUID(id), runs, functions)


async def next_message(plans: OperationPlans, executor: PlanExecutor, operation: op.Next) -> Any:
    """Wait for the next message; the first call with a topic and conditions subscribes the run."""
    claim, topic, where = plans.claim, operation.topic, operation.where
    fields = msgspec.json.encode(list(where)).decode()
    listening = commands.Listening(claim.tenant, topic, fields, values_digest(where.values()))
    return await plans.receive_message(
        executor, operation, message_context(claim.tenant, topic), inbox_of(topic, where), listening
    )
