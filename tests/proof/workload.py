"""The tasks of the simulation: jobs, random durable functions and graphs.

Task code reports to the `TaskObserver` of the current seed which steps it ran and in which order it received results.
An impossible observation is a violation.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast import (
    Batch,
    BatchFailed,
    Context,
    Fatal,
    Graph,
    Holdfast,
    Retry,
    RunEnd,
    RunFailed,
    StepFailed,
    SyncContext,
    WaitTimeout,
)
from tests.proof.replica import Replica
from tests.support.step_functions import step_function

Program = list[Any]
RETRY = Retry(max_attempts=4, delay=0.2, factor=2, max_delay=1)
EVENTS = ("dawn", "noon", "dusk")
SIDE = "side"
"""A queue with slots of its own whose runs only some workers may execute, and with priority aging."""
SIDE_SLOTS = 1
LEAVES = ("step", "step", "thread", "flaky", "fail", "value", "sleep", "event", "maybe", "message", "child", "broken")
MORE_LEAVES = (
    "map", "transaction", "emit", "undo", "naps", "limited", "annotate", "set", "spend", "paid", "publish", "ask",
    "next", "write", "stream",
)  # fmt: skip
ALONE = ("give up", "serve")
"""Operations that are never in concurrent branches: their order depends on the timing of task code, which replay can't
repeat, or they receive what other branches wait for."""
DURABLE = (
    "step", "thread", "flaky", "fail", "value", "transaction", "emit", "undo", "limited", "annotate", "set", "publish",
    "ask", "serve", "write", "stream",
)  # fmt: skip
"""Operations whose result reaches task code only after it was recorded."""
FORMS = ("seq", "seq", "all", "group", "first", "each")
PRICE, NOTE = "price", "note"
"""The names of asks: what functions receive one by one, and what only those that serve answer as well. The reply is the
payload, a number."""
PARCELS = "parcels"
"""A topic that no task subscribes to, only functions."""


@dataclass
class Parcel:
    """A message on the topic `PARCELS`."""

    to: str
    n: int


class AttemptView:
    """The observations of one attempt. The first `firm` entries precede a recorded result."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.firm = 0
        self.compared = 0


class TaskObserver:
    """Collects and checks what task code observes during one seed."""

    def __init__(
        self,
        replica: Replica,
        fail: Callable[[str], None],
        sleep: Callable[[float], None],
        on_wait: Callable[[str], None],
        on_ask: Callable[[str, str], None],
        kill: Callable[[asyncio.AbstractEventLoop], None],
    ) -> None:
        self.kill = kill  # kills the process of this loop
        self.on_wait = on_wait  # called before task code waits for an event
        self.on_ask = on_ask  # called with a run and a name before task code waits for an ask
        self.replica = replica
        self.fail = fail
        self.sleep = sleep
        self.calls: Counter[str] = Counter()
        self.views: defaultdict[tuple[str, int], list[AttemptView]] = defaultdict(list)
        self.returned: defaultdict[str, set[str]] = defaultdict(set)
        self.side_runs: defaultdict[int, set[str]] = defaultdict(set)  # names of running runs by the id of the loop
        self.asks: defaultdict[str, dict[str, str]] = defaultdict(dict)  # which operation of a run received each ask
        self.written: defaultdict[str, dict[tuple[int, str], list[str]]] = defaultdict(dict)
        """The chunks of each run that count, by generation and operation."""

    def forget(self, run: str) -> None:
        """Forget the observations of a run that an operator retries."""
        self.asks.pop(run, None)
        for id, generation in self.views:
            if id == run:
                self.views[id, generation] = []

    def ran(self, run: str, name: str) -> int:
        """Count an execution of this code and return the total."""
        self.calls[f"{run} {name}"] += 1
        return self.calls[f"{run} {name}"]


def leaf(rng: random.Random, number: list[int], alone: bool) -> Program:
    number[0] += 1
    kind = rng.choice(LEAVES + MORE_LEAVES + (ALONE if alone else ()))
    return [kind, f"{kind.replace(' ', '')}{number[0]}", rng.choice((0, 0, 1, 3, 8)), rng.choice(EVENTS)]


def tree(rng: random.Random, depth: int, number: list[int], alone: bool = True) -> Program:
    """Return a random program: a tree of operations and control structures."""
    if depth == 0 or rng.random() < 0.3:
        return leaf(rng, number, alone)
    form = rng.choice(FORMS)
    alone = alone and form == "seq"
    inside = [tree(rng, depth - 1, number, alone) for _ in range(rng.randint(1, 3))]
    return [form, "", rng.choice((0, 1)), inside]


def leaves(program: Program) -> list[Program]:
    if isinstance(program[3], list):
        return [found for inside in program[3] for found in leaves(inside)]
    return [program]


class SimulatedTasks:
    """The tasks, declared once; `observer` belongs to the current seed."""

    observer: TaskObserver

    def __init__(self, app: Holdfast) -> None:  # noqa: C901 - a list of tasks
        self.app = app
        app.limit("few", concurrency=2)
        app.limit("slow", rate="3/s")
        app.limit("tokens", rate="20/s", concurrency=2, cost="turns")
        app.budget("usd", limit=0.1, per="tree")
        app.budget("points", limit=0.1, per="tenant", window=3)
        task = app.task
        noted = self._declare_hook(app)

        @task(name="job", retry=RETRY, on_end=noted)
        async def job(name: str, fails: int, tenths: int) -> str:
            await asyncio.sleep(tenths / 10)
            if self.observer.ran("", name) <= fails:
                raise ValueError(name)
            return name

        @task(name="limited", retry=RETRY, limits=["few"], timeout=1.5)
        async def limited(name: str, fails: int, tenths: int) -> str:
            return await job.fn(name, fails, tenths)

        @task(name="rated", retry=RETRY, limits=["few", "slow"], max_crashes=1, on_end=noted)
        async def rated(name: str, fails: int, tenths: int) -> str:
            return await job.fn(name, fails, tenths)

        @task(name="threaded", retry=RETRY, timeout=0.6, limits=["few"])
        def threaded(name: str, fails: int, tenths: int) -> str:
            self.observer.sleep(tenths / 10)
            if self.observer.ran("", name) <= fails:
                raise ValueError(name)
            return name

        @task(name="child", retry=RETRY, on_end=noted)
        async def child(name: str) -> str:
            await asyncio.sleep(0)
            return f"child {name}"

        @task(name="broken")
        async def broken(name: str) -> str:
            raise Fatal(name)

        @task(name="culprit", retry=RETRY, max_crashes=1)
        async def culprit(name: str, tenths: int) -> str:
            """Kill the worker in every attempt."""
            await asyncio.sleep(tenths / 10)
            loop = asyncio.get_running_loop()
            self.observer.kill(loop)
            await loop.create_future()  # the loop is dead, so this never returns
            return name

        @task(name="heard", on="news")
        async def heard(name: str) -> str:
            return name

        self.heard = heard
        self._declare_side(app)
        self.culprit = culprit
        self.job, self.limited, self.rated, self.threaded = job, limited, rated, threaded
        self.child, self.broken = child, broken
        self.jobs = (job, limited, rated, threaded)
        self._declare_programs(app)
        self._declare_batched(app)

    def _declare_side(self, app: Holdfast) -> None:
        app.queue(SIDE, age_priority=1)

        @app.task(name="side", queue=SIDE, requires={SIDE: "yes"}, retry=RETRY, max_crashes=1000)
        async def side(ctx: Context, name: str, tenths: int) -> str:
            loop, run = asyncio.get_running_loop(), self.observer.replica.run(str(ctx.run_id))
            running = self.observer.side_runs[id(loop)]
            running.add(name)
            if len(running) > SIDE_SLOTS and run is not None and run["isolation"] is None:
                self.observer.fail(f"{len(running)} runs of a queue with {SIDE_SLOTS} slots of its own run in a worker")
            try:
                await asyncio.sleep(tenths / 10)
            finally:
                running.discard(name)
            return name

        self.side = side

    def _declare_batched(self, app: Holdfast) -> None:
        @app.task(name="batched", retry=RETRY, batch=Batch(max_size=3, max_wait=0.2), timeout=1.5)
        async def batched(items: list[tuple[str, int, int]]) -> list[str]:
            await asyncio.sleep(max(tenths for _, _, tenths in items) / 10)
            errors: dict[int, Exception] = {
                at: ValueError(name)
                for at, (name, fails, _) in enumerate(items)
                if self.observer.ran("", name) <= fails
            }
            names = [name for name, *_ in items]
            if errors:
                raise BatchFailed(errors, names)
            return names

        self.batched = batched

    @staticmethod
    def _declare_hook(app: Holdfast) -> Any:
        @app.task(name="noted", prefers={SIDE: "yes"})
        async def noted(end: RunEnd) -> str:
            return end.state

        return noted

    def _declare_programs(self, app: Holdfast) -> None:
        @app.task(
            name="program", max_crashes=1000, retry=Retry(max_attempts=3, delay=0.1), on_end=app.registry.get("noted")
        )
        async def program(ctx: Context, what: Program, generation: int, end: str) -> Any:
            return await ProgramRunner(self, ctx, generation).act(what, end)

        @app.task(name="plain program", max_crashes=1000, retry=Retry(max_attempts=3, delay=0.1))
        def plain(ctx: SyncContext, what: Program, generation: int, end: str) -> Any:
            return run_without_loop(SyncProgramRunner(self, ctx, generation).act(what, end))

        self.program, self.plain = program, plain

    def graph(self, rng: random.Random, name: str) -> Graph:
        """Return a random graph of jobs."""
        graph = Graph("graph")
        nodes: list[Any] = []
        for at in range(rng.randint(2, 5)):
            after = [node for node in nodes if rng.random() < 0.4]
            picked = [node.finished if rng.random() < 0.2 else node for node in after]
            called = f"{name}-{at}"
            if rng.random() < 0.15:
                nodes.append(graph.add(self.broken, called, name=called, after=picked))
            else:
                task = rng.choice((self.job, self.limited))
                nodes.append(graph.add(task, called, rng.choice((0, 0, 1)), 0, name=called, after=picked))
        return graph


class ProgramRunner:
    """Executes a program in one attempt."""

    def __init__(self, tasks: SimulatedTasks, ctx: Any, generation: int) -> None:
        self.tasks = tasks
        self.observer = tasks.observer
        self.ctx = ctx
        self.run = str(ctx.run_id)
        self.generation = generation
        self.view = AttemptView()
        self.observer.views[self.run, generation].append(self.view)

    async def act(self, what: Program, end: str) -> Any:
        value = await self.do(what)
        if end == "restart" and self.generation < 1:
            await self.ctx.restart(what, self.generation + 1, end)
        if end == "fatal":
            raise Fatal("as planned")
        if end == "retry" and self.observer.ran(self.run, "end") < 2:
            raise ValueError("once more")
        return value

    def observe(self, *words: object, durable: bool = False) -> None:
        """Record an observation of task code and compare it with those of other attempts.

        Observations before a recorded result must be the same in every attempt. An outcome of a wait may be observed
        before it is recorded: if the worker dies then, nothing that depends on it is recorded either. Code that unwinds
        after a suspension or a lost lease observes nothing.
        """
        self.ctx.check()
        view = self.view
        view.entries.append(" ".join(map(str, words)))
        if durable:
            view.firm = len(view.entries)
        for other in self.observer.views[self.run, self.generation]:
            for at in range(view.compared if durable else len(view.entries) - 1, min(view.firm, other.firm)):
                if other.entries[at] != view.entries[at]:
                    self.observer.fail(
                        f"run {self.run} saw {view.entries[at]!r} where it had seen {other.entries[at]!r}:"
                        f" {view.entries} and {other.entries}"
                    )
        view.compared = view.firm

    async def do(self, node: Program) -> Any:
        kind, name, turns, inside = node
        if isinstance(inside, list):
            value = await getattr(self, f"in_{kind}")(inside)
        else:
            self.observe("begins", name)
            try:
                value = await getattr(self, f"do_{kind.replace(' ', '_')}")(name, turns, inside)
            except (StepFailed, RunFailed) as failed:
                value = f"failed {failed.error.code}"
            except WaitTimeout:
                value = "too late"
        self.observe("has", name or kind, value, durable=kind in DURABLE)
        return value

    # Operations

    async def do_step(self, name: str, turns: int, _event: str) -> Any:
        return self.expect(name, await self.ctx.step(self.step, name, turns))

    async def do_limited(self, name: str, turns: int, _event: str) -> Any:
        """Run a step that takes permits, and lower its estimate afterwards."""
        limited = self.ctx.options(limits=["tokens"], cost=turns + 4)
        got = self.expect(name, await limited.step(self.step, name, turns))
        await self.ctx.adjust("tokens", turns)
        return got

    def expect(self, wanted: Any, got: Any) -> Any:
        if got != wanted:
            self.observer.fail(f"run {self.run} got {got!r} instead of {wanted!r}")
        return got

    @step_function
    async def step(self, name: str, turns: int) -> str:
        self.begun(name)
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns > 5:
            await asyncio.sleep(0.3)
        return name

    def begun(self, name: str) -> int:
        """Note the start of a step function; a violation if its result is recorded and the worker holds the run."""
        attempt = self.ctx._executor.current
        run = self.observer.replica.run(self.run)
        if run is not None and (run["session"], run["fence"]) == (attempt.session, attempt.claim.fence):
            for row in self.observer.replica.of_run("checkpoints", self.run):
                ended = row["kind"] in ("step", "transaction") and row["generation"] == attempt.claim.generation
                if ended and row["value"] == f'"{name}"' and not run["ending"]:
                    self.observer.fail(f"step {name} of run {self.run} is recorded, but ran again")
        return self.observer.ran(self.run, f"{self.generation} {name}")

    async def do_thread(self, name: str, turns: int, _event: str) -> Any:
        return self.expect(name, await self.ctx.step(self.thread, name, turns))

    @step_function
    def thread(self, name: str, turns: int) -> str:
        self.begun(name)
        self.observer.sleep(turns / 20)
        return name

    async def do_flaky(self, name: str, turns: int, _event: str) -> Any:
        flaky = self.ctx.options(retry=Retry(max_attempts=6, delay=0.01), timeout=0.5)
        return self.expect(name, await flaky.step(self.flaky, name, turns))

    @step_function
    async def flaky(self, name: str, turns: int) -> str:
        if self.begun(name) <= turns % 3:
            raise ValueError(name)
        return name

    async def do_fail(self, name: str, turns: int, _event: str) -> Any:
        return await self.ctx.step(self.bad, name)

    @step_function
    async def bad(self, name: str) -> str:
        self.begun(name)
        raise ValueError(name)

    async def do_value(self, name: str, turns: int, _event: str) -> Any:
        return await (self.ctx.random() if turns else self.ctx.now())

    async def do_sleep(self, name: str, turns: int, _event: str) -> Any:
        return await self.ctx.sleep(turns / 8, name=name)

    async def do_naps(self, name: str, turns: int, event: str) -> Any:
        """Be suspended several times, so that different workers continue the run."""
        for at in range(min(turns, 2) + 1):
            await self.ctx.sleep(0.3, name=f"{name}-{at}")
            self.expect(f"{name}-{at}", await self.ctx.step(self.step, f"{name}-{at}", 0))

    async def do_event(self, name: str, turns: int, event: str) -> Any:
        self.observer.on_wait(f"{event} {self.run} {name}")
        return await self.ctx.wait_for(f"{event} {self.run} {name}")

    async def do_maybe(self, name: str, turns: int, event: str) -> Any:
        return await self.ctx.wait_for(event, timeout=turns / 5)

    async def do_message(self, name: str, turns: int, event: str) -> Any:
        return await self.ctx.receive("news", type=int)

    async def do_child(self, name: str, turns: int, event: str) -> Any:
        return self.expect(f"child {name}", await self.ctx.call(self.tasks.child, name))

    async def do_broken(self, name: str, turns: int, event: str) -> Any:
        return await self.ctx.call(self.tasks.broken, name)

    async def do_map(self, name: str, turns: int, event: str) -> Any:
        names = [f"{name}-{at}" for at in range(turns + 1)]
        got = await self.ctx.map(self.tasks.child, names, concurrency=2 if turns > 1 else None)
        return self.expect([f"child {each}" for each in names], got)

    async def do_transaction(self, name: str, turns: int, event: str) -> Any:
        return self.expect(name, await self.ctx.transaction(self.insert, f"{self.generation} {name}", name))

    @step_function
    def insert(self, connection: Any, name: str, value: str) -> str:
        self.begun(value)
        connection.execute(
            "insert into author_effects (run, name, n)"
            " values (:run, :name, (select count(*) from author_effects where run = :run and name = :name))",
            {"run": self.run, "name": name},
        )
        return value

    async def do_annotate(self, name: str, turns: int, event: str) -> Any:
        return await self.ctx.annotate(**{"last": name, event: turns})

    async def do_set(self, name: str, turns: int, event: str) -> Any:
        return await self.ctx.set(event, name)

    async def do_spend(self, name: str, turns: int, event: str) -> Any:
        await self.ctx.spend("usd" if event == "noon" else "points", turns / 50)
        return "spent"

    async def do_paid(self, name: str, turns: int, event: str) -> Any:
        """Spend inside a step, on both budgets."""
        return self.expect(name, await self.ctx.step(self.paid, name, turns))

    @step_function
    async def paid(self, name: str, turns: int) -> str:
        self.begun(name)
        for budget in ("usd", "points"):
            await self.ctx.spend(budget, turns / 100)
        return name

    async def do_emit(self, name: str, turns: int, event: str) -> Any:
        return await self.ctx.emit(event, f"by {name}")

    async def do_publish(self, name: str, turns: int, event: str) -> Any:
        if turns:
            await self.ctx.publish(PARCELS, Parcel(event, turns))
            return "sent"
        return self.expect(1, (await self.ctx.publish("news", name)).runs)

    async def do_next(self, name: str, turns: int, event: str) -> Any:
        return (await self.ctx.next(PARCELS, where={"to": event}, type=Parcel)).n

    async def do_ask(self, name: str, turns: int, event: str) -> Any:
        self.observer.on_ask(self.run, f"{self.generation} {name}")
        ask = await self.ctx.receive_ask(PRICE, type=int)
        self.handles(f"{self.generation} {name}", ask.key)
        await self.reply(ask)
        return ask.payload

    async def reply(self, ask: Any) -> None:
        await ask.reply(ask.payload)

    def handles(self, operation: str, key: str) -> None:
        """Note that an operation has received an ask; a violation if another one had received it."""
        self.ctx.check()
        if (known := self.observer.asks[self.run].setdefault(key, operation)) != operation:
            self.observer.fail(f"run {self.run} received ask {key} in {known!r} and in {operation!r}")

    async def do_serve(self, name: str, turns: int, event: str) -> Any:
        """Answer several asks."""
        wanted, handled = turns % 3 + 1, []
        for at in range(wanted):
            self.observer.on_ask(self.run, f"{self.generation} {name} {at}")

        def price(number: int) -> int:
            handled.append(number)
            self.observe("serves", number)
            if len(handled) == wanted:
                self.ctx.stop(None)
            return number

        await self.ctx.serve(**{PRICE: price, NOTE: price})
        return handled

    async def do_write(self, name: str, turns: int, event: str) -> Any:
        """Write a chunk outside of steps."""
        chunk = f"{name} {self.generation}"
        await self.ctx.write(chunk)
        self.observer.written[self.run][self.generation, name] = [chunk]

    async def do_stream(self, name: str, turns: int, event: str) -> Any:
        """Write chunks in a step whose first tries may fail."""
        flaky = self.ctx.options(retry=Retry(max_attempts=6, delay=0.01))
        chunks = await flaky.step(self.stream, name, turns)
        self.observer.written[self.run][self.generation, name] = chunks
        return chunks

    @step_function
    async def stream(self, name: str, turns: int) -> list[str]:
        call = self.begun(name)
        chunks = [f"{name} {self.generation} call {call} piece {piece}" for piece in range(turns % 4 + 1)]
        for chunk in chunks:
            await self.ctx.write(chunk)
            if call <= turns % 3:
                raise ValueError(name)
        return chunks

    async def do_undo(self, name: str, turns: int, event: str) -> Any:
        return self.expect(name, await self.ctx.options(undo=self.undo).step(self.step, name, turns))

    async def undo(self, result: str) -> None:
        self.observer.ran(self.run, f"undo {result}")

    async def do_give_up(self, name: str, turns: int, event: str) -> Any:
        """Cancel a wait in task code."""
        waiting = asyncio.ensure_future(self.ctx.wait_for(f"{event} never"))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return "gave up"

    # Control structures

    async def in_seq(self, inside: list[Program]) -> Any:
        return [await self.do(node) for node in inside]

    async def in_all(self, inside: list[Program]) -> Any:
        return await asyncio.gather(*map(self.do, inside))

    async def in_group(self, inside: list[Program]) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.do(node)) for node in inside]
        return [task.result() for task in tasks]

    async def in_first(self, inside: list[Program]) -> Any:
        tasks = [asyncio.ensure_future(self.do(node)) for node in inside]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.observe("first", [at for at, task in enumerate(tasks) if task in done])
        if rest:
            await asyncio.wait(rest)
        return [task.result() for task in tasks]

    async def in_each(self, inside: list[Program]) -> Any:
        tasks = [asyncio.ensure_future(self.do(node)) for node in inside]
        return [await each for each in asyncio.as_completed(tasks)]


class AwaitableContext:
    """Wraps a `SyncContext` so that its operations can be awaited; they complete immediately."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.run_id = getattr(ctx, "run_id", None)
        self._executor = ctx._executor

    def check(self) -> None:
        self._ctx.check()

    def stop(self, value: Any) -> Any:
        return self._ctx.stop(value)

    def options(self, **given: Any) -> AwaitableContext:
        return AwaitableContext(self._ctx.options(**given))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **given: Any) -> Any:
            return getattr(self._ctx, name)(*args, **given)

        return call


def run_without_loop(coroutine: Any) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a sync program waited for the event loop")


class SyncProgramRunner(ProgramRunner):
    """Executes a program in a sync function: sequentially, with steps in its own thread."""

    def __init__(self, tasks: SimulatedTasks, ctx: SyncContext, generation: int) -> None:
        super().__init__(tasks, AwaitableContext(ctx), generation)

    @step_function
    def step(self, name: str, turns: int) -> str:  # type: ignore[override]
        return self.thread(name, turns)

    @step_function
    def flaky(self, name: str, turns: int) -> str:  # type: ignore[override]
        if self.begun(name) <= turns % 3:
            raise ValueError(name)
        return name

    @step_function
    def bad(self, name: str) -> str:  # type: ignore[override]
        self.begun(name)
        raise ValueError(name)

    @step_function
    def paid(self, name: str, turns: int) -> str:  # type: ignore[override]
        return run_without_loop(super().paid(name, turns))

    @step_function
    def stream(self, name: str, turns: int) -> list[str]:  # type: ignore[override]
        chunks: list[str] = run_without_loop(super().stream(name, turns))
        return chunks

    async def reply(self, ask: Any) -> None:
        ask.reply(ask.payload)

    def undo(self, result: str) -> None:  # type: ignore[override]
        self.observer.ran(self.run, f"undo {result}")

    async def do_give_up(self, name: str, turns: int, event: str) -> Any:
        """Do nothing, because a sync function can't cancel a wait."""

    in_all = in_group = in_first = in_each = ProgramRunner.in_seq
