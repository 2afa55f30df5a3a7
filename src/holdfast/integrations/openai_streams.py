"""Streamed runs of the OpenAI Agents SDK: the events that the body of a durable function gets.

The body must get the same events in a replay, so they come from what is recorded. Import it from `openai_agents`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import count
from typing import Any

from agents import ModelResponse, RunResultStreaming, StreamEvent
from agents.items import TResponseStreamEvent
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)


class StreamedRun:
    """A run of an agent whose events are read with `stream_events`. It has all attributes of `RunResultStreaming`.

    After it has waited for an approval, they are those of the part that went on.
    """

    def __init__(
        self,
        result: RunResultStreaming,
        continue_after: Callable[[RunResultStreaming], Awaitable[RunResultStreaming]] | None = None,
    ) -> None:
        self._result = result
        self._continue_after = continue_after

    @property
    def final_output(self) -> Any:
        """The output of the last agent, once all events were read."""
        return self._result.final_output

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Yield the events of the SDK. Raises what the run fails with."""
        while True:
            async with aclosing(self._result.stream_events()) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
            if self._continue_after is None or not self._result.interruptions:
                return
            self._result = await self._continue_after(self._result)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._result, name)


def events_of(response: ModelResponse) -> Iterator[TResponseStreamEvent]:
    """Return the events of a recorded response: each text in one piece, each item, and the end.

    They are constructed without validation, because items of other providers may be incomplete.
    """
    number = count()
    for index, item in enumerate(response.output):
        for place, part in enumerate(item.content if isinstance(item, ResponseOutputMessage) else ()):
            if isinstance(part, ResponseOutputText) and part.text:
                yield ResponseTextDeltaEvent.model_construct(
                    type="response.output_text.delta", delta=part.text, item_id=item.id, output_index=index,
                    content_index=place, logprobs=[], sequence_number=next(number),
                )  # fmt: skip
        yield ResponseOutputItemDoneEvent.model_construct(
            type="response.output_item.done", item=item, output_index=index, sequence_number=next(number)
        )
    used = response.usage
    usage = ResponseUsage.model_construct(
        input_tokens=used.input_tokens, output_tokens=used.output_tokens, total_tokens=used.total_tokens,
        input_tokens_details=used.input_tokens_details, output_tokens_details=used.output_tokens_details,
    )  # fmt: skip
    ended = Response.model_construct(
        id=response.response_id, object="response", created_at=0, model="", output=response.output, usage=usage,
        tools=[], tool_choice="auto", parallel_tool_calls=False,
    )  # fmt: skip
    yield ResponseCompletedEvent.model_construct(
        type="response.completed", response=ended, sequence_number=next(number)
    )
