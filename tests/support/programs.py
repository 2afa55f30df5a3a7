"""Random durable functions: trees of steps, waits and children under gather, groups, as_completed, wait and locks.

`Interpreter` runs them and records what user code saw in each attempt, in order: a replay must show the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from holdfast import Context, Fatal, Holdfast, Retry, RunFailed, StepFailed
from tests.support.ledger import Ledger
from tests.support.step_functions import step_function

logger = logging.getLogger("tests.programs")

Program = list[Any]


@dataclass
class Numbered:
    """A message of a topic."""

    number: int


TURNS = st.integers(0, 4)
"""How many turns of the loop the function of a step takes."""
PAUSE = st.integers(0, 1)
"""How many turns user code takes before it goes on. A replay gives it some, but not any number of them."""
DEEPEST = 3
NEAR = {"near": "yes"}
"""The label that the children `near` prefer, whose queue has the same name."""
TWICE = Retry(max_attempts=2, delay=0)


def programs(kinds: tuple[str, ...], widest: int = 4) -> st.SearchStrategy[Program]:
    """Generate trees whose leaves have these kinds: step, thread, fail, again, value, wait, message, topic,
    publish, ask, sleep, child, near, broken, annotate, set, limited, adjusted, spend, paid or crash."""
    leaf = st.tuples(st.sampled_from(kinds), TURNS, PAUSE).map(lambda leaf: [*leaf, None])
    forms = st.sampled_from(("all", "group", "each", "first", "seq", "lock"))
    tree: st.SearchStrategy[Program] = leaf
    for _ in range(DEEPEST):
        branches = st.tuples(forms, TURNS, PAUSE, st.lists(tree, min_size=1, max_size=widest)).map(list)
        tree = st.one_of(leaf, branches)
    return tree.map(numbered)


def numbered(program: Program) -> Program:
    """Give every leaf a unique name."""
    count = iter(range(1000))

    def number(node: Program) -> Program:
        kind, turns, pause, inside = node
        if inside is None:
            return [kind, turns, pause, f"{kind}{next(count)}"]
        return [kind, turns, pause, [number(child) for child in inside]]

    return number(program)


def names(program: Program) -> list[str]:
    """Return the names of all leaves."""
    inside = program[3]
    return [inside] if isinstance(inside, str) else [name for child in inside for name in names(child)]


class Interpreter:
    """A durable task that runs programs. `seen` has, for each run, what its code saw in each attempt.

    `loops`: the ids of the event loops that executed each task.
    """

    def __init__(self, app: Holdfast, ledger: Ledger) -> None:
        self.app = app
        self.ledger = ledger
        self.seen: dict[str, list[list[str]]] = defaultdict(list)
        self.loops: dict[str, set[int]] = defaultdict(set)
        app.limit("one", concurrency=1)
        app.limit("tokens", rate="1000000/s", cost=1)
        app.budget("usd", limit=0.1)

        @app.task(name="child")
        async def child(name: str) -> str:
            return name

        @app.task(name="near", queue="near", prefers=NEAR)
        async def near(name: str) -> str:
            self.loops["near"].add(id(asyncio.get_running_loop()))
            return name

        @app.task(name="broken")
        async def broken(name: str) -> str:
            raise Fatal(name)

        @app.task(name="subscriber", on="published")
        async def subscriber(name: str) -> None: ...

        @app.task(name="program", max_crashes=1000)
        async def program(ctx: Context, what: list[Any]) -> Any:
            self.seen[str(ctx.run_id)].append([])
            self.loops["program"].add(id(asyncio.get_running_loop()))
            return await self.play(ctx, what)

        self.child, self.near, self.broken, self.program = child, near, broken, program

    def say(self, ctx: Context, *words: object) -> None:
        ctx.check()  # code that unwinds at a suspension or loss records nothing
        self.seen[str(ctx.run_id)][-1].append(" ".join(map(str, words)))
        logger.info(" ".join(map(str, words)))

    async def play(self, ctx: Context, node: Program) -> Any:
        kind, turns, pause, inside = node
        for _ in range(pause):
            await asyncio.sleep(0)
        if isinstance(inside, str):
            self.say(ctx, "begins", inside)
            value = await self.leaf(ctx, kind, turns, inside)
            self.say(ctx, "has", inside, value)
            return inside
        value = await getattr(self, f"play_{kind}")(ctx, inside)
        self.say(ctx, kind, value)
        return value

    async def leaf(self, ctx: Context, kind: str, turns: int, name: str) -> Any:
        asked: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "step": lambda: ctx.step(self.step, name, turns),
            "thread": lambda: ctx.step(self.thread, name),
            "fail": lambda: ctx.step(self.fail, name, turns),
            "again": lambda: ctx.options(retry=TWICE).step(self.second, name),
            "value": ctx.random,
            "wait": lambda: ctx.wait_for(f"{ctx.run_id} {name}"),
            "message": lambda: ctx.receive(name, type=int),
            "topic": lambda: ctx.next(f"{ctx.run_id}.{name}", where={"fits": True}, type=Numbered),
            "publish": lambda: ctx.publish("published", f"{ctx.run_id} {name}"),
            "ask": lambda: self.answer(ctx, name),
            "sleep": lambda: ctx.sleep(turns / 1000, name=name),
            "child": lambda: ctx.call(self.child, name),
            "near": lambda: ctx.call(self.near, name),
            "broken": lambda: ctx.call(self.broken, name),
            "annotate": lambda: ctx.annotate(last=name, turns=turns),
            "set": lambda: ctx.set("last", name),
            "limited": lambda: ctx.options(limits=["one"]).step(self.step, name, turns),
            "adjusted": lambda: self.adjusted(ctx, name, turns),
            "spend": lambda: self.spend(ctx, turns),
            "paid": lambda: ctx.options(name=name).step(lambda: self.paid(ctx, name, turns)),
            "crash": lambda: ctx.step(self.crash, str(ctx.run_id), name),
        }
        try:
            return await asked[kind]()
        except (StepFailed, RunFailed) as failed:
            return f"failed {failed.error.message}"

    async def adjusted(self, ctx: Context, name: str, turns: int) -> Any:
        value = await ctx.options(limits=["tokens"], cost=turns + 1).step(self.step, name, turns)
        await ctx.adjust("tokens", turns)
        return value

    async def spend(self, ctx: Context, turns: int) -> str:
        await ctx.spend("usd", turns / 100)
        return "spent"

    async def paid(self, ctx: Context, name: str, turns: int) -> str:
        """Spend inside a step."""
        self.ledger.write(name)
        await ctx.spend("usd", turns / 100)
        return name

    async def answer(self, ctx: Context, name: str) -> Any:
        ask = await ctx.receive_ask(name, type=int)
        await ask.reply([name, ask.payload])
        return ask.payload

    # Functions of steps

    @step_function
    async def step(self, name: str, turns: int) -> str:
        self.ledger.write(name)
        for _ in range(turns):
            await asyncio.sleep(0)
        return name

    @step_function
    def thread(self, name: str) -> str:
        self.ledger.write(name)
        return name

    @step_function
    async def fail(self, name: str, turns: int) -> str:
        await self.step(name, turns)
        raise ValueError(name)

    @step_function
    async def second(self, name: str) -> str:
        """Fail every first of two calls."""
        self.ledger.write(name)
        if self.ledger.counts()[name] % 2:
            raise ConnectionError(name)
        return name

    @step_function
    def crash(self, run: str, name: str) -> str:
        """In the first call, make the worker lose the run while other steps of it are running."""
        self.ledger.write(name)
        if self.ledger.counts()[name] == 1:
            handle = self.app.get_run(run)
            handle.cancel()
            handle.retry()
        return name

    # Branches

    async def play_all(self, ctx: Context, inside: list[Program]) -> Any:
        return await asyncio.gather(*(self.play(ctx, node) for node in inside))

    async def play_group(self, ctx: Context, inside: list[Program]) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.play(ctx, node)) for node in inside]
        return [task.result() for task in tasks]

    async def play_each(self, ctx: Context, inside: list[Program]) -> Any:
        got = []
        tasks = [asyncio.ensure_future(self.play(ctx, node)) for node in inside]  # a set would start them in any order
        for next_one in asyncio.as_completed(tasks):
            got.append(await next_one)
            self.say(ctx, "next", got[-1])
        return got

    async def play_first(self, ctx: Context, inside: list[Program]) -> Any:
        tasks = [asyncio.ensure_future(self.play(ctx, node)) for node in inside]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.say(ctx, "first", [at for at, task in enumerate(tasks) if task in done])
        if rest:
            await asyncio.wait(rest)
        return [task.result() for task in tasks]

    async def play_seq(self, ctx: Context, inside: list[Program]) -> Any:
        return [await self.play(ctx, node) for node in inside]

    async def play_lock(self, ctx: Context, inside: list[Program]) -> Any:
        lock = asyncio.Lock()

        async def one(node: Program) -> Any:
            async with lock:
                return await self.play(ctx, node)

        return await asyncio.gather(*map(one, inside))
