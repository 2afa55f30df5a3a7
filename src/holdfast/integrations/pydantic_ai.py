"""Run pydantic-ai agents durably: `HoldfastDurability`, a capability to add to an agent.

Needs `pip install "holdfast[pydantic-ai]"`. pydantic-ai names the operations of an agent (model requests, tool calls,
discovery of tools, handlers of events) and hands them to a backend; here each is a step of the durable function that
runs the agent. The agent's own code is part of the body and is replayed.

The names of steps are stored with runs in flight: tests pin them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from holdfast.errors import Fatal
from holdfast.integrations.agents import (
    CHARS_PER_TOKEN,
    Approval,
    ModelSpending,
    Outside,
    Price,
    StepOptions,
    TokenUsage,
    adjust_limits,
    body_context,
    check_place,
    chunk_writer,
    run_step,
    step_context,
    wait_for_approval,
)
from holdfast.model.clock import Duration
from holdfast.task.context import Context
from holdfast.task.declared_limits import EstimatedCost
from holdfast.task.scope import current_scope

try:
    from pydantic import TypeAdapter
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.agent import AbstractAgent, AgentRunResult, EventStreamHandler
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.capabilities.abstract import WrapRunHandler
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        CallableOperationBackend,
        CapabilityOperationId,
        DurabilityEngineSpec,
        DurableOperationConfig,
        DurableOperationId,
        EventStreamHandlerId,
        JournalOperationNamer,
        ModelCancelSuspendedResponseId,
        ModelCompactMessagesId,
        ModelRequestId,
        OperationConfigRole,
        ToolsetCallToolId,
        ToolsetGetInstructionsId,
        ToolsetGetToolsId,
        ToolsetValidateToolArgumentsId,
        conversation_id_from_run_id,
    )
    from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelHTTPError, UserError
    from pydantic_ai.messages import (
        AgentStreamEvent,
        FinalResultEvent,
        ModelMessagesTypeAdapter,
        PartDeltaEvent,
        PartEndEvent,
        PartStartEvent,
        TextPart,
        TextPartDelta,
        ToolCallPart,
    )
    from pydantic_ai.models import Model
    from pydantic_ai.tools import (
        AgentDepsT,
        DeferredToolRequests,
        DeferredToolResults,
        ToolApproved,
        ToolDenied,
    )
    from pydantic_ai.usage import RunUsage
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.pydantic_ai needs pydantic-ai 2.66 or later: "
        f'pip install "holdfast[pydantic-ai]" ({error})'
    ) from error

__all__ = ["Approval", "HoldfastDurability", "Price", "StepOptions"]

DEFAULT_NAME = "agent"
USAGE_KEY = "holdfast_usage"
"""In the recorded result of a tool call: the usage of the agents that the tool ran."""
METADATA_KEY = "holdfast"
"""In the metadata of a tool: the options of its step, or False to run it in the body."""
TOOL_ADVICE = 'give the tool metadata={"holdfast": False} so that each call of the agent is a step of its own'
ERRORS: tuple[type[Exception], ...] = (ModelHTTPError, AgentRunError)
"""Errors that an operation raises as themselves, live and in a replay. The first class that fits is restored."""

Chunks: TypeAlias = Literal["text", "events"] | Callable[[AgentStreamEvent], Any] | None

_EVENT = TypeAdapter[AgentStreamEvent](AgentStreamEvent)
_USAGE = TypeAdapter(RunUsage)
_MODEL_EVENTS = (PartStartEvent, PartDeltaEvent, PartEndEvent, FinalResultEvent)


# Names


class StepNamer(JournalOperationNamer):
    """Names the steps of an agent: `research.model`, `research.tool.search`."""

    def __init__(self, agent: str, default_model: str | None) -> None:
        super().__init__(agent)
        self._agent = agent
        self._default_model = default_model

    def operation_name(self, operation_id: DurableOperationId) -> str:
        return f"{self._agent}.{self._operation(operation_id)}"

    def invocation_name(self, operation_id: DurableOperationId, *, label: str | None) -> Any:
        name = self.operation_name(operation_id)
        invocation = super().invocation_name(operation_id, label=label)
        return replace(invocation, operation_name=name if label is None else f"{name}.{label}")

    def _operation(self, id: DurableOperationId) -> str:
        match id:
            case ModelRequestId():  # streamed or not: what is recorded is the same
                return self._model(id.model_id)
            case ModelCancelSuspendedResponseId():
                return f"{self._model(id.model_id)}.cancel"
            case ModelCompactMessagesId():
                return f"{self._model(id.model_id)}.compact"
            case EventStreamHandlerId():
                return "event"
            case CapabilityOperationId():
                return f"capability.{id.capability_id}.{id.operation}"
            case ToolsetCallToolId():
                return "tool"
            case ToolsetValidateToolArgumentsId():
                return "validate"
            case ToolsetGetToolsId():
                return f"list_tools.{id.toolset_id}"
            case ToolsetGetInstructionsId():
                return f"instructions.{id.toolset_id}"
        raise Fatal(f"this version of pydantic-ai has an operation that Holdfast doesn't know: {type(id).__name__}")

    def _model(self, id: str | None) -> str:
        """Name a model. The agent's own one is nameless, so that another one may take its place while runs are open."""
        return "model" if id is None or id == self._default_model else f"model({id})"


# Steps


class Operations(DurableOperationConfig[StepOptions]):
    """The options of steps: by role, and per tool from its metadata."""

    def __init__(self, model: StepOptions, tool: StepOptions) -> None:
        self._model = model
        self._tool = tool

    def base(self, role: OperationConfigRole, *, operation_id: DurableOperationId) -> StepOptions:  # noqa: ARG002
        if role == "model":
            return self._model
        return self._tool if role == "tool" else {}

    def for_tool(
        self,
        role: OperationConfigRole,
        *,
        operation_id: DurableOperationId,
        tool: Any,
        tool_name: str,
    ) -> StepOptions | Literal[False]:
        given = None if tool is None else (tool.tool_def.metadata or {}).get(METADATA_KEY)
        if given is False:
            return False
        if given is not None and not isinstance(given, dict):
            raise UserError(
                f"tool {tool_name}: metadata[{METADATA_KEY!r}] must be options of a step or False, "
                f"not {type(given).__name__}"
            )
        return StepOptions(**{**self.base(role, operation_id=operation_id), **(given or {})})


class StepBackend(CallableOperationBackend[StepOptions]):
    """Runs each operation of an agent as a step."""

    def __init__(self, namer: StepNamer, options: Operations, spending: ModelSpending) -> None:
        super().__init__(namer=namer, config=options)
        self._spending = spending

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        ctx = body_context()
        if ctx is None:  # dispatched in a step after all, which records the result
            return await body()
        if isinstance(operation_id, ModelRequestId):
            request = _ModelRequest(body, ctx, config, self._spending)
            return await run_step(ctx, name, request.call, options=request.with_cost(cache_key), raises=ERRORS)
        run = next((item for item in cache_key if isinstance(item, RunContext)), None)
        call_id = None if run is None else run.tool_call_id
        if not isinstance(operation_id, ToolsetCallToolId) or run is None or call_id is None:
            return await run_step(ctx, name, _Unit(body).call, options=config, raises=ERRORS)
        payload = await run_step(ctx, name, _ToolCall(body, run.usage).call, call_id, options=config, raises=ERRORS)
        if isinstance(payload, dict) and (usage := payload.pop(USAGE_KEY, None)) is not None:
            run.usage.incr(_USAGE.validate_python(usage))
        return payload


class _Unit:
    """An operation without arguments: its identity is its name, and how often it was called before."""

    def __init__(self, body: Callable[[], Awaitable[object]]) -> None:
        self._body = body

    async def call(self) -> Any:
        try:
            return await self._body()
        except UserError as error:
            raise Fatal(str(error)) from error  # a mistake in the agent's code, which a retry would repeat
        except ModelAPIError as error:
            error.args = _constructor_arguments(error)
            raise


class _ModelRequest(_Unit):
    def __init__(
        self, body: Callable[[], Awaitable[object]], ctx: Context, options: StepOptions, spending: ModelSpending
    ) -> None:
        super().__init__(body)
        self._ctx = ctx
        self._options = options
        self._spending = spending

    def with_cost(self, request: tuple[object, ...]) -> StepOptions:
        """Return the options with an estimate of the tokens, if there are limits and no other cost."""
        if not self._options.get("limits") or self._options.get("cost") is not None:
            return self._options
        messages = request[1] if len(request) > 1 and isinstance(request[1], list) else []
        chars = len(ModelMessagesTypeAdapter.dump_json(messages))
        return StepOptions(**{**self._options, "cost": EstimatedCost(max(1, chars // CHARS_PER_TOKEN))})

    async def call(self) -> Any:
        response = await super().call()
        usage = _tokens(response.get("usage") or {})
        if self._options.get("limits"):
            await adjust_limits(self._ctx, self._options, usage.input + usage.output)
        await self._spending.spend(self._ctx, response.get("model_name") or "", usage)
        return response


def _tokens(usage: Mapping[str, Any]) -> TokenUsage:
    names = ("input_tokens", "output_tokens", "cache_read_tokens")
    return TokenUsage(*(int(usage.get(name) or 0) for name in names))


_tool_usage: ContextVar[RunUsage | None] = ContextVar("holdfast_tool_usage", default=None)
"""The usage that a tool adds to. A copy of the run's, because what it adds must also be added in a replay."""


class _ToolCall(_Unit):
    def __init__(self, body: Callable[[], Awaitable[object]], usage: RunUsage) -> None:
        super().__init__(body)
        self._usage = usage

    async def call(self, tool_call_id: str) -> Any:  # type: ignore[override]  # noqa: ARG002 - identifies the step
        before, usage = copy.deepcopy(self._usage), copy.deepcopy(self._usage)
        token = _tool_usage.set(usage)
        try:
            payload = await super().call()
        finally:
            _tool_usage.reset(token)
        used = usage - before
        if used.has_values() and isinstance(payload, dict):
            payload[USAGE_KEY] = _USAGE.dump_python(used, mode="json")
        return payload


def _constructor_arguments(error: ModelAPIError) -> tuple[Any, ...]:
    """Return what the error is created from, to restore it from the record of the failed step."""
    reduced = error.__reduce__()
    arguments: tuple[Any, ...] = reduced[1]
    return arguments if reduced[0] is type(error) else arguments[1:]


def _not_serializable(error: Exception) -> BaseException:
    return Fatal(f"the result can't be stored as JSON: {error}")


# The capability

_agent_runs: WeakKeyDictionary[Context, int] = WeakKeyDictionary()
"""How many runs of agents a durable function has started. Counted again in a replay, in the same order."""


class HoldfastDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable when it runs in a durable function: its model requests and tool calls are steps.

    Args:
        name: Begins the names of the agent's steps. Defaults to the agent's name, or else `agent`.
        models: Further models by id, for `agent.run(model=…)`.
        event_stream_handler: Receives the events of the agent: those of a model request live, inside its step; others
            in a step for each.
        stream: Write to the run's stream while the model answers: `"text"` writes the text, `"events"` every event as
            JSON, a function what it returns for an event, unless that is None.
        model_options: Options of the steps of model requests.
        tool_options: Options of the steps of tool calls. A tool's `metadata={"holdfast": {…}}` overrides them;
            `metadata={"holdfast": False}` runs the tool in the body, where it can use the context and other agents.
        approvals: `"gate"` lets tool calls that need an approval wait at a gate `approve:TOOL`, and calls of external
            tools at a gate `result:TOOL`. `"return"` ends the agent's run with `DeferredToolRequests`. By default, it
            depends on whether the agent's output type includes `DeferredToolRequests`.
        approval_timeout: How long a gate stays open. Then the call is denied.
        budget: The budget that model requests spend, as declared with `app.budget`.
        prices: What models cost, by name or by how their names begin; `"*"` is for all others. Without it, the agent
            spends the number of its tokens.
        outside: What happens outside a durable function: `"refuse"` raises an error, `"run"` runs the agent without
            durability.

    Example:
        ```python
        agent = Agent("openai:gpt-5", name="research", capabilities=[HoldfastDurability(stream="text")])

        @app.task
        async def research(ctx: Context, question: str) -> str:
            result = await agent.run(question)
            return result.output
        ```
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="durable function",
        codec=JSON_CODEC,
        serialization_failure=_not_serializable,
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=METADATA_KEY,
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        stream: Chunks = None,
        model_options: StepOptions | None = None,
        tool_options: StepOptions | None = None,
        approvals: Literal["gate", "return"] | None = None,
        approval_timeout: Duration | None = None,
        budget: str | None = None,
        prices: Mapping[str, Price] | None = None,
        outside: Outside = "refuse",
    ) -> None:
        handler = None if event_stream_handler is None and stream is None else self._handle_events
        super().__init__(models=models, event_stream_handler=handler, name=name)
        self._given_handler = event_stream_handler
        self._stream = stream
        self._options = Operations(model_options or {}, tool_options or {})
        self._spending = ModelSpending(budget, prices)
        self._approvals = approvals
        self._approval_timeout = approval_timeout
        self._outside = outside

    def for_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> AbstractCapability[AgentDepsT]:
        if self.name or agent.name:
            return super().for_agent(agent)
        named = copy.copy(self)
        named.name = DEFAULT_NAME
        return super(HoldfastDurability, named).for_agent(agent)

    # The run of an agent

    @property
    def in_durable_context(self) -> bool:
        return body_context() is not None

    def get_durable_operation_backend(self) -> StepBackend:
        return StepBackend(StepNamer(self.name, self.default_model_id), self._options, self._spending)

    def get_default_run_id(self) -> str | None:
        ctx, scope = body_context(), current_scope.get()
        if ctx is None or scope is None:
            return None
        number = _agent_runs[ctx] = _agent_runs.get(ctx, 0) + 1
        run = scope.run if scope.generation == 0 else f"{scope.run}~{scope.generation}"
        return f"{run}:{number}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:  # noqa: ARG002
        ctx = body_context()
        return None if ctx is None else await ctx.now()

    async def before_run(self, ctx: RunContext[AgentDepsT]) -> None:
        check_place(self.name, self._outside, advice=TOOL_ADVICE)
        await super().before_run(ctx)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        if not self.in_durable_context:
            return await super().wrap_run(ctx, handler=handler)
        with Agent.using_sleep(_sleep):
            return await super().wrap_run(ctx, handler=handler)

    def _durable_run_context(self, ctx: RunContext[AgentDepsT]) -> RunContext[AgentDepsT]:
        guarded = super()._durable_run_context(ctx)
        usage = _tool_usage.get()
        return guarded if usage is None else replace(guarded, usage=usage)

    # Events

    async def _handle_events(self, ctx: RunContext[AgentDepsT], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Write the events of a model request to the run's stream, and pass all events on to the given handler."""
        target = step_context()
        if target is None or self._stream is None:
            await self._handle_remaining(ctx, events)
            return
        async with chunk_writer(target) as writer:

            async def written() -> AsyncIterator[AgentStreamEvent]:
                async for event in events:
                    if isinstance(event, _MODEL_EVENTS) and (chunk := self._chunk(event)) is not None:
                        await writer.write(chunk)
                    yield event

            await self._handle_remaining(ctx, written())

    async def _handle_remaining(self, ctx: RunContext[AgentDepsT], events: AsyncIterable[AgentStreamEvent]) -> None:
        if self._given_handler is not None:
            await self._given_handler(ctx, events)
        async for _ in events:
            pass

    async def _dispatch_event_stream_event(self, ctx: RunContext[AgentDepsT], event: AgentStreamEvent) -> None:
        target = body_context()
        if target is not None and (chunk := self._chunk(event)) is not None:
            await target.write(chunk)
        if self._given_handler is not None:
            await super()._dispatch_event_stream_event(ctx, event)

    def _chunk(self, event: AgentStreamEvent) -> Any:
        """Return what is written to the run's stream for an event, or None."""
        if self._stream == "text":
            return _text(event) or None
        if self._stream == "events":
            return _EVENT.dump_python(event, mode="json")
        return None if self._stream is None else self._stream(event)

    # Approvals

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults | None:
        target = body_context()
        if target is None or not self._waits_at_gates():
            return None
        results = DeferredToolResults()

        async def approve(call: ToolCallPart) -> None:
            payload = _gate_payload(call, requests)
            decision = await wait_for_approval(target, call.tool_name, payload, self._approval_timeout)
            if decision.approved:
                results.approvals[call.tool_call_id] = ToolApproved(override_args=decision.arguments)
            else:
                results.approvals[call.tool_call_id] = ToolDenied(decision.message or ToolDenied.message)

        async def receive(call: ToolCallPart) -> None:
            payload = _gate_payload(call, requests)
            results.calls[call.tool_call_id] = await target.gate(f"result:{call.tool_name}", payload=payload)

        await asyncio.gather(*map(approve, requests.approvals), *map(receive, requests.calls))
        return results

    def _waits_at_gates(self) -> bool:
        if self._approvals is not None:
            return self._approvals == "gate"
        return self.agent is None or not _has_deferred_output(self.agent.output_type)


async def _sleep(seconds: float) -> None:
    ctx = body_context()
    if ctx is None:
        await asyncio.sleep(max(seconds, 0))
    else:
        await ctx.sleep(max(seconds, 0))


def _text(event: AgentStreamEvent) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


def _gate_payload(call: ToolCallPart, requests: DeferredToolRequests) -> dict[str, Any]:
    payload = {"tool": call.tool_name, "arguments": call.args_as_dict(), "tool_call_id": call.tool_call_id}
    metadata = requests.metadata.get(call.tool_call_id)
    return payload if metadata is None else payload | {"metadata": metadata}


def _has_deferred_output(output_type: Any) -> bool:
    members = output_type if isinstance(output_type, list | tuple) else getattr(output_type, "__args__", [output_type])
    return any(member is DeferredToolRequests for member in members)
