"""API operations on topics: list them, and publish."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.control.topics import Published, TopicDetails
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.api.runs import effective_tenant, page_size


class TopicsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only messages and functions of one tenant; the maximum number of messages."""

    tenant: str | None = None
    limit: int = 100


class PublishRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A message. `key`: it is published once, and a repeated request returns the first one."""

    payload: Any = None
    key: str | None = None
    tenant: str | None = None


def _topics(call: ApiRequest) -> TopicDetails:
    return _read(call, None)


def _topic(call: ApiRequest) -> TopicDetails:
    return _read(call, call.path["topic"])


def _read(call: ApiRequest, topic: str | None) -> TopicDetails:
    tenant = effective_tenant(call, call.query.tenant)
    return call.control.topics.list(topic, tenant, page_size(call.query.limit))


def _publish(call: ApiRequest) -> Published:
    body: PublishRequest = call.body
    return call.control.topics.publish(call.path["topic"], body.payload, body.key, effective_tenant(call, body.tenant))


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET", path="/topics", name="list_topics", may_lag=True,
        summary="List topics, the tasks that subscribe, recent messages, and functions that wait for some.",
        do=_topics, query=TopicsQuery, answer=TopicDetails, all_tasks=True,
    ),
    Operation(
        method="GET", path="/topics/{topic:path}", name="show_topic",
        summary="Show one topic: who subscribes, its recent messages, and functions that wait for some.",
        do=_topic, query=TopicsQuery, answer=TopicDetails, all_tasks=True,
    ),
    Operation(
        method="POST", path="/topics/{topic:path}", name="publish",
        summary="Publish a message to a topic: creates a run of each task that subscribes.",
        do=_publish, body=PublishRequest, answer=Published, all_tasks=True,
    ),
)  # fmt: skip
