"""Run agents of the OpenAI Agents SDK durably: `HoldfastRunner`.

Needs `pip install "holdfast[openai-agents]"`. The runner runs a copy of the agents in which models, function tools,
guardrails, MCP servers and the session are replaced by ones that do their work in steps of the durable function. The
SDK's own code is part of the body and is replayed.

The names of steps are stored with runs in flight: tests pin them.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from holdfast.errors import Fatal, TaskError
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
    wait_for_approval,
)
from holdfast.model.clock import Duration
from holdfast.task.context import Context, active_context, current_context
from holdfast.task.declared_limits import EstimatedCost

try:
    from agents import (
        Agent,
        AgentsException,
        CodeInterpreterTool,
        FileSearchTool,
        FunctionTool,
        GuardrailFunctionOutput,
        Handoff,
        HostedMCPTool,
        ImageGenerationTool,
        InputGuardrail,
        Model,
        ModelResponse,
        OutputGuardrail,
        RunConfig,
        RunResult,
        RunResultStreaming,
        RunState,
        Session,
        Tool,
        ToolApprovalItem,
        TResponseInputItem,
        Usage,
        UserError,
        WebSearchTool,
    )
    from agents.items import TResponseStreamEvent
    from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
    from agents.tool_context import ToolContext
    from pydantic import TypeAdapter
    from pydantic_core import to_jsonable_python

    from holdfast.integrations.openai_streams import StreamedRun, events_of
except ImportError as error:
    raise ImportError(
        f'holdfast.integrations.openai_agents needs openai-agents 0.24: pip install "holdfast[openai-agents]" ({error})'
    ) from error

__all__ = ["Approval", "HoldfastRunner", "Price", "StepOptions", "StreamedRun"]

TOOL_ADVICE = 'pass HoldfastRunner(tools={"TOOL": False}) so that each call of the agent is a step of its own'
ERRORS: tuple[type[Exception], ...] = (AgentsException,)
HOSTED_TOOLS = (WebSearchTool, FileSearchTool, CodeInterpreterTool, HostedMCPTool, ImageGenerationTool)
"""Tools that the provider runs: what they return is part of the model's response."""
TRACE_NAMESPACE = uuid.UUID("8a3c5d0e-52bb-4f0a-9f59-0d0c55a1b7f4")

Chunks: TypeAlias = Literal["text", "events"] | Callable[[TResponseStreamEvent], Any] | None

_RESPONSE = TypeAdapter(ModelResponse)
_INPUT = TypeAdapter(list[Any])


class HoldfastRunner:
    """Runs agents of the OpenAI Agents SDK in durable functions.

    Args:
        stream: Write to the run's stream while a model answers: `"text"` writes the text, `"events"` every event as
            JSON, a function what it returns for an event, unless that is None.
        model_options: Options of the steps of model calls.
        tool_options: Options of the steps of tool calls.
        tools: Options of single tools by name, which override `tool_options`. False runs a tool in the body, where it
            can use the context and run other agents.
        approval_timeout: How long the gate of a tool call that needs an approval stays open. Then the call is
            rejected.
        budget: The budget that model calls spend, as declared with `app.budget`.
        prices: What models cost, by name or by how their names begin; `"*"` is for all others. Without it, an agent
            spends the number of its tokens.
        outside: What happens outside a durable function: `"refuse"` raises an error, `"run"` runs the agent without
            durability.

    Example:
        ```python
        runner = HoldfastRunner(stream="text")

        @app.task
        async def research(ctx: Context, question: str) -> str:
            result = await runner.run(agent, question)
            return result.final_output
        ```
    """

    def __init__(
        self,
        *,
        stream: Chunks = None,
        model_options: StepOptions | None = None,
        tool_options: StepOptions | None = None,
        tools: Mapping[str, StepOptions | Literal[False]] | None = None,
        approval_timeout: Duration | None = None,
        budget: str | None = None,
        prices: Mapping[str, Price] | None = None,
        outside: Outside = "refuse",
    ) -> None:
        self.stream = stream
        self.spending = ModelSpending(budget, prices)
        self.model_options: StepOptions = model_options or {}
        self._tool_options: StepOptions = tool_options or {}
        self._tools = dict(tools or {})
        self._approval_timeout = approval_timeout
        self._outside = outside

    async def run(
        self,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem],  # noqa: A002 - as in the SDK
        *,
        run_config: RunConfig | dict[str, Any] | None = None,
        session: Session | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent as `Runner.run` does, with the same arguments, and wait at gates for approvals.

        Args:
            starting_agent: The agent to start with.
            input: The user's message, or items.
            run_config: Settings of the run. The id of the durable run is added to the metadata of its trace.
            session: The conversation. It is read and extended in steps.
            **options: Further arguments of `Runner.run`.

        Raises:
            TaskError: Called outside a durable function, unless `outside="run"`.
        """
        check_place(starting_agent.name, self._outside, advice=TOOL_ADVICE)
        plain = _delegating_runner().plain
        ctx = body_context()
        config = RunConfig(**run_config) if isinstance(run_config, dict) else run_config or RunConfig()
        if ctx is None:
            return await plain.run(starting_agent, input, run_config=config, session=session, **options)
        agents = _DurableAgents(self, config)
        agent = agents.convert(starting_agent)
        options |= agents.options(ctx, starting_agent.name, session)
        token = _active_runner.set(self)
        try:
            result = await plain.run(agent, input, **options)
            while result.interruptions:
                state = await self._decide(ctx, result, agents.arguments)
                result = await plain.run(agent, state, **_without_conversation(options))
            return result
        finally:
            _active_runner.reset(token)

    def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem],  # noqa: A002 - as in the SDK
        *,
        run_config: RunConfig | dict[str, Any] | None = None,
        session: Session | None = None,
        **options: Any,
    ) -> StreamedRun:
        """Run an agent as `Runner.run_streamed` does, with the same arguments, and wait at gates for approvals.

        `stream_events()` yields what is recorded, so that a replay yields the same: each answer of a model as one
        piece of text. Readers of the run's stream get its text while the model answers, or what `stream` says.

        Args:
            starting_agent: The agent to start with.
            input: The user's message, or items.
            run_config: Settings of the run. The id of the durable run is added to the metadata of its trace.
            session: The conversation. It is read and extended in steps.
            **options: Further arguments of `Runner.run_streamed`.

        Raises:
            TaskError: Called outside a durable function, unless `outside="run"`.
        """
        check_place(starting_agent.name, self._outside, advice=TOOL_ADVICE)
        plain = _delegating_runner().plain
        ctx = body_context()
        config = RunConfig(**run_config) if isinstance(run_config, dict) else run_config or RunConfig()
        if ctx is None:
            return StreamedRun(plain.run_streamed(starting_agent, input, run_config=config, session=session, **options))
        agents = _DurableAgents(self._streaming(), config)
        agent = agents.convert(starting_agent)
        options |= agents.options(ctx, starting_agent.name, session)

        def start(given: Any, options: dict[str, Any]) -> RunResultStreaming:
            token = _active_runner.set(self)  # the task of the run, which starts now, keeps it
            try:
                return plain.run_streamed(agent, given, **options)
            finally:
                _active_runner.reset(token)

        async def continue_after(interrupted: RunResultStreaming) -> RunResultStreaming:
            state = await self._decide(ctx, interrupted, agents.arguments)
            return start(state, _without_conversation(options))

        return StreamedRun(start(input, options), continue_after)

    def _streaming(self) -> HoldfastRunner:
        """Return a runner that writes the text of models, if this one writes nothing."""
        if self.stream is not None:
            return self
        streaming = copy.copy(self)
        streaming.stream = "text"
        return streaming

    async def _decide(
        self, ctx: Context, result: RunResult | RunResultStreaming, arguments: dict[str, str]
    ) -> RunState[Any]:
        """Wait at the gates of all tool calls that need an approval."""
        items = result.interruptions
        decisions = await asyncio.gather(*(self._wait(ctx, item) for item in items))
        state = result.to_state()
        for item, decision in zip(items, decisions, strict=True):
            if decision.approved:
                state.approve(item)
                if decision.arguments is not None and item.call_id is not None:
                    arguments[item.call_id] = json.dumps(decision.arguments)
            else:
                state.reject(item, rejection_message=decision.message or None)
        return state

    async def _wait(self, ctx: Context, item: ToolApprovalItem) -> Approval:
        name = item.name or "tool"
        payload = {"tool": name, "arguments": item.arguments, "agent": item.agent.name}
        return await wait_for_approval(ctx, name, payload, self._approval_timeout)

    def options_of(self, tool: str) -> StepOptions | Literal[False]:
        """Return the options of a tool's step, or False if it runs in the body."""
        own = self._tools.get(tool)
        if own is False:
            return False
        return StepOptions(**{**self._tool_options, **(own or {})})


def _without_conversation(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run that goes on from a state, which has the rest."""
    kept = ("context", "previous_response_id", "auto_previous_response_id", "conversation_id")
    return {name: value for name, value in options.items() if name not in kept}


# Agents that call an agent as a tool run it with the SDK's default runner

_active_runner: ContextVar[HoldfastRunner | None] = ContextVar("holdfast_agent_runner", default=None)


class _DelegatingRunner(AgentRunner):
    """The SDK's default runner, which lets agents that run in the body of a durable agent be durable too."""

    def __init__(self, plain: AgentRunner) -> None:
        self.plain = plain

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:  # noqa: A002
        active = _active_runner.get()
        if active is None or body_context() is None or isinstance(input, RunState):
            return await self.plain.run(starting_agent, input, **options)
        return await active.run(starting_agent, input, **options)

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:  # noqa: A002
        return self.plain.run_sync(starting_agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:  # noqa: A002
        active = _active_runner.get()
        if active is not None and body_context() is not None and not isinstance(input, RunState):
            return active.run_streamed(starting_agent, input, **options)
        return self.plain.run_streamed(starting_agent, input, **options)


def _delegating_runner() -> _DelegatingRunner:
    runner = get_default_agent_runner()
    if not isinstance(runner, _DelegatingRunner):
        runner = _DelegatingRunner(runner)
        set_default_agent_runner(runner)
    return runner


_started_runs: WeakKeyDictionary[Context, int] = WeakKeyDictionary()
"""How many runs of agents a durable function has started. Counted again in a replay, in the same order."""


class _DurableAgents:
    """Copies of the agents of one run, in which everything that isn't deterministic is a step."""

    def __init__(self, runner: HoldfastRunner, config: RunConfig) -> None:
        self._runner = runner
        self._config = config
        self._converted: dict[int, Agent[Any]] = {}
        self.arguments: dict[str, str] = {}
        """By id of a tool call: the arguments that an approval gave it."""

    def options(self, ctx: Context, agent: str, session: Session | None) -> dict[str, Any]:
        """Return what the SDK runs the agent with."""
        durable = None if session is None else _DurableSession(session, agent)
        return {"run_config": self._run_config(ctx, agent), "session": durable}

    def _run_config(self, ctx: Context, agent: str) -> RunConfig:
        """Return the settings of the run: with the id of the durable run, and without a model for all agents."""
        number = _started_runs[ctx] = _started_runs.get(ctx, 0) + 1
        given = self._config
        return replace(
            given,
            model=None,  # each agent has its own
            trace_id=given.trace_id or f"trace_{uuid.uuid5(TRACE_NAMESPACE, f'{ctx.run_id}:{number}').hex}",
            group_id=given.group_id or str(ctx.run_id),
            trace_metadata={"holdfast_run_id": str(ctx.run_id), **(given.trace_metadata or {})},
            input_guardrails=[_input_guardrail(agent, each) for each in given.input_guardrails or []],
            output_guardrails=[_output_guardrail(agent, each) for each in given.output_guardrails or []],
        )

    def convert(self, agent: Agent[Any]) -> Agent[Any]:
        if isinstance(agent.model, DurableModel):  # the last agent of another run
            return agent
        if (known := self._converted.get(id(agent))) is not None:
            return known
        durable = self._converted[id(agent)] = agent.clone(
            model=DurableModel(agent.name, self._model(agent), self._runner),
            tools=[self._tool(agent.name, tool) for tool in agent.tools],
            input_guardrails=[_input_guardrail(agent.name, each) for each in agent.input_guardrails],
            output_guardrails=[_output_guardrail(agent.name, each) for each in agent.output_guardrails],
            mcp_servers=[_mcp_server(agent.name, server) for server in agent.mcp_servers],
            handoffs=[],
        )
        durable.handoffs = [self._handoff(each) for each in agent.handoffs]  # after it is known: they may be circular
        return durable

    def _model(self, agent: Agent[Any]) -> Callable[[], Model]:
        chosen = self._config.model or agent.model
        if isinstance(chosen, Model):
            return lambda: chosen
        provider = self._config.model_provider
        return lambda: provider.get_model(chosen)

    def _tool(self, agent: str, tool: Tool) -> Tool:
        if isinstance(tool, FunctionTool):
            options = self._runner.options_of(tool.name)
            is_agent = getattr(tool, "_is_agent_tool", False)
            return _function_tool(agent, tool, False if is_agent else options, self.arguments)
        if isinstance(tool, HOSTED_TOOLS):
            return tool
        raise TaskError(
            f"agent {agent}: Holdfast can't record the calls of a {type(tool).__name__}, because this process executes "
            "them: write a function tool that does the same"
        )

    def _handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(target, Agent):
            return self.convert(target)
        durable = copy.copy(target)
        invoke = target.on_invoke_handoff

        async def invoke_durably(context: Any, arguments: str) -> Any:
            return self.convert(await invoke(context, arguments))

        durable.on_invoke_handoff = invoke_durably
        return durable


# Models


class DurableModel(Model):
    """A model that is called in a step."""

    def __init__(self, agent: str, model: Callable[[], Model], runner: HoldfastRunner) -> None:
        self._agent = agent
        self._model = model
        self._runner = runner

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        ctx = body_context()
        call = _ModelCall(self._model, self._runner, request, options)
        if ctx is None:
            return _RESPONSE.validate_python(await call.run())
        step_options = call.step_options()
        payload = await run_step(ctx, f"{self._agent}.model", call.run, options=step_options, raises=ERRORS)
        return _RESPONSE.validate_python(payload)

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        for event in events_of(await self.get_response(*request, **options)):
            yield event


class _ModelCall:
    """One call of a model. Its identity is the name of its step, and how often that was called before."""

    def __init__(
        self, model: Callable[[], Model], runner: HoldfastRunner, request: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._model = model
        self._runner = runner
        self._request = request
        self._options = options

    def step_options(self) -> StepOptions:
        """Return the options, with an estimate of the tokens if there are limits and no other cost."""
        options = self._runner.model_options
        if not options.get("limits") or options.get("cost") is not None:
            return options
        given = (*self._request[:2], self._options.get("system_instructions"), self._options.get("input"))
        chars = sum(len(str(each)) for each in given if each is not None)
        return StepOptions(**{**options, "cost": EstimatedCost(max(1, chars // CHARS_PER_TOKEN))})

    async def run(self) -> Any:
        try:
            model = self._model()
            response = await (self._streamed(model) if self._runner.stream else self._plain(model))
        except UserError as error:
            raise Fatal(str(error)) from error  # a mistake in the agent's code, which a retry would repeat
        used, ctx = response.usage, active_context.get()
        if ctx is not None:
            if self._runner.model_options.get("limits"):
                await adjust_limits(ctx, self._runner.model_options, used.input_tokens + used.output_tokens)
            cached = used.input_tokens_details.cached_tokens or 0
            usage = TokenUsage(used.input_tokens, used.output_tokens, cached)
            await self._runner.spending.spend(ctx, str(getattr(model, "model", "")), usage)
        return _RESPONSE.dump_python(response, mode="json", exclude_unset=True, warnings=False)

    async def _plain(self, model: Model) -> ModelResponse:
        return await model.get_response(*self._request, **self._options)

    async def _streamed(self, model: Model) -> ModelResponse:
        items: list[Any] = []
        async with chunk_writer(current_context()) as writer:
            async for event in model.stream_response(*self._request, **self._options):
                if (chunk := self._chunk(event)) is not None:
                    await writer.write(chunk)
                if event.type == "response.output_item.done":
                    items.append(event.item)
                elif event.type == "response.completed":
                    return _completed(event.response, items)
        raise ConnectionError("the model's stream ended before its response was complete")

    def _chunk(self, event: TResponseStreamEvent) -> Any:
        stream = self._runner.stream
        if stream == "text":
            return event.delta if event.type == "response.output_text.delta" and event.delta else None
        if stream == "events":
            return event.model_dump(mode="json", exclude_none=True, warnings=False)
        return None if stream is None else stream(event)


def _completed(response: Any, items: list[Any]) -> ModelResponse:
    """Return the response of a stream. Some providers leave out the items that were streamed before."""
    used, usage = response.usage, Usage(requests=1)
    if used is not None:
        usage = Usage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    return ModelResponse(output=response.output or items, usage=usage, response_id=response.id)


# Tools, guardrails, servers and sessions


def _function_tool(
    agent: str, tool: FunctionTool, options: StepOptions | Literal[False], approved: Mapping[str, str]
) -> FunctionTool:
    durable = copy.copy(tool)
    invoke = tool.on_invoke_tool

    async def invoke_durably(context: ToolContext[Any], arguments: str) -> Any:
        arguments = approved.get(context.tool_call_id, arguments)
        if options is False:
            return await invoke(context, arguments)
        call = _FunctionCall(invoke, context, arguments)
        ctx = body_context()
        if ctx is None:
            return await call.run(context.tool_call_id)
        name = f"{agent}.tool.{tool.name}"
        return await run_step(ctx, name, call.run, context.tool_call_id, options=options, raises=ERRORS)

    durable.on_invoke_tool = invoke_durably
    return durable


class _FunctionCall:
    def __init__(self, invoke: Callable[..., Awaitable[Any]], context: ToolContext[Any], arguments: str) -> None:
        self._invoke = invoke
        self._context = context
        self._arguments = arguments

    async def run(self, tool_call_id: str) -> Any:  # noqa: ARG002 - identifies the step
        try:
            return _jsonable(await self._invoke(self._context, self._arguments))
        except UserError as error:
            raise Fatal(str(error)) from error


def _jsonable(value: Any) -> Any:
    """Return what is recorded of a result. The SDK accepts its own classes also as dicts, and prints other objects."""
    return value if isinstance(value, str) else to_jsonable_python(value, fallback=str)


class _Recorded:
    """A call whose identity is the name of its step, and how often that was called before."""

    def __init__(self, call: Callable[[], Any], adapter: TypeAdapter[Any] | None = None) -> None:
        self._call = call
        self._adapter = adapter

    async def run(self) -> Any:
        value = self._call()
        value = await value if inspect.isawaitable(value) else value
        return _jsonable(value) if self._adapter is None else self._adapter.dump_python(value, mode="json")


async def _recorded(name: str, call: Callable[[], Any], adapter: TypeAdapter[Any] | None = None) -> Any:
    ctx = body_context()
    recorded = _Recorded(call, adapter)
    value = await (recorded.run() if ctx is None else run_step(ctx, name, recorded.run, options={}, raises=ERRORS))
    return value if adapter is None else adapter.validate_python(value)


_GUARDRAIL = TypeAdapter(GuardrailFunctionOutput)


def _guardrail_function(agent: str, name: str, check: Callable[..., Any]) -> Callable[..., Any]:
    async def check_durably(*given: Any) -> GuardrailFunctionOutput:
        return await _recorded(f"{agent}.guardrail.{name}", lambda: check(*given), _GUARDRAIL)  # type: ignore[no-any-return]

    return check_durably


def _input_guardrail(agent: str, given: InputGuardrail[Any]) -> InputGuardrail[Any]:
    name = given.get_name()
    return replace(given, name=name, guardrail_function=_guardrail_function(agent, name, given.guardrail_function))


def _output_guardrail(agent: str, given: OutputGuardrail[Any]) -> OutputGuardrail[Any]:
    name = given.get_name()
    return replace(given, name=name, guardrail_function=_guardrail_function(agent, name, given.guardrail_function))


def _mcp_server(agent: str, server: Any) -> Any:
    """Return a copy of a connected MCP server whose requests are steps."""
    from mcp.types import CallToolResult
    from mcp.types import Tool as MCPTool

    durable = copy.copy(server)
    prefix = f"{agent}.mcp.{server.name}"
    tools, result = TypeAdapter(list[MCPTool]), TypeAdapter(CallToolResult)

    async def list_tools(*given: Any, **options: Any) -> Any:
        return await _recorded(f"{prefix}.list_tools", lambda: server.list_tools(*given, **options), tools)

    async def call_tool(tool_name: str, arguments: dict[str, Any] | None, **options: Any) -> Any:
        call = _Recorded(lambda: server.call_tool(tool_name, arguments, **options), result)
        ctx = body_context()
        name = f"{prefix}.{tool_name}"
        value = await (call.run() if ctx is None else run_step(ctx, name, call.run, options={}, raises=ERRORS))
        return result.validate_python(value)

    durable.list_tools, durable.call_tool = list_tools, call_tool
    return durable


class _DurableSession:
    """A session that is read and changed in steps.

    Items are added once: a step records how many there are, and the next one adds them unless they follow already.
    """

    def __init__(self, session: Session, agent: str) -> None:
        self._session = session
        self._name = f"{agent}.session"
        self.session_id = session.session_id
        self.session_settings = getattr(session, "session_settings", None)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        return await _recorded(f"{self._name}.get_items", lambda: self._session.get_items(limit), _INPUT)  # type: ignore[no-any-return]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        if not items:
            return
        before = await _recorded(f"{self._name}.count", self._count)
        await _recorded(f"{self._name}.add_items", lambda: self._add(before, items))

    async def _count(self) -> int:
        return len(await self._session.get_items())

    async def _add(self, before: int, items: list[TResponseInputItem]) -> None:
        there = await self._session.get_items()
        if there[before : before + len(items)] != items:
            await self._session.add_items(items)

    async def pop_item(self) -> TResponseInputItem | None:
        return await _recorded(f"{self._name}.pop_item", self._session.pop_item)  # type: ignore[no-any-return]

    async def clear_session(self) -> None:
        await _recorded(f"{self._name}.clear", self._session.clear_session)
