"""A fake model for the OpenAI Agents SDK, which answers by what it has been told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import Model, ModelResponse, Usage
from agents.testing import assistant_message, function_call
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent, ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

Answer = list[str] | dict[str, tuple[str, str]]
"""The parts of a text, or calls of tools: name and arguments by id."""


class FakeModel(Model):
    """Answers with what `respond` returns for the outputs of tools so far, by id of their call."""

    def __init__(self, respond: Callable[[dict[str, Any]], Answer]) -> None:
        self._respond = respond

    def _answer(self, conversation: str | list[Any]) -> Answer:
        items = [] if isinstance(conversation, str) else conversation
        return self._respond({item["call_id"]: item["output"] for item in items if "output" in item})

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=output(self._answer(given(request, options))), usage=usage, response_id=None)

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[Any]:
        answer = self._answer(given(request, options))
        for number, part in enumerate(answer if isinstance(answer, list) else []):
            yield ResponseTextDeltaEvent(
                content_index=0, delta=part, item_id="text", logprobs=[], output_index=0, sequence_number=number,
                type="response.output_text.delta",
            )  # fmt: skip
        usage = ResponseUsage(
            input_tokens=10, output_tokens=5, total_tokens=15,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )  # fmt: skip
        response = Response(
            id="response", created_at=0, model="fake", object="response", output=output(answer), tools=[],
            parallel_tool_calls=True, tool_choice="auto", usage=usage,
        )  # fmt: skip
        yield ResponseCompletedEvent(response=response, sequence_number=99, type="response.completed")


def given(request: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the input of a request."""
    return options["input"] if "input" in options else request[1]


def output(answer: Answer) -> list[Any]:
    if isinstance(answer, list):
        return [assistant_message("".join(answer))]
    return [function_call(name, arguments, call_id=id) for id, (name, arguments) in answer.items()]
