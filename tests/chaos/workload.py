"""The tasks of a chaos run, and the effects and states that each kind of root must end with.

A root's mark is its kind and a number, such as `order-17`; the marks of its descendants add a dot and a name. Besides
the tasks that must succeed there are culprits, which harm their worker (`tests/support/culprits.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast import After, Batch, Context, Done, Fatal, Graph, Holdfast, Retry, Run, State, SyncContext, Topic
from tests.chaos.effects import Effects
from tests.support.culprits import CULPRITS, HANGS, add_culprits
from tests.support.ledger import Ledger

MARK = re.compile(r'"([a-z]+-\d+(?:\.\w+)?)"')
MAX_CRASHES = 10
"""More than the faults kill a worker with the same run alone in it, and few enough that a wrong charge shows."""
SETTINGS: dict[str, Any] = {"max_crashes": MAX_CRASHES, "retry": Retry(max_attempts=1)}
LOADS = 2
MOVES = 100
PLACED, PAID = "orders.placed", "orders.paid"
"""Topics. A run publishes the first message while workers die; a program publishes the second, again after errors."""
SUBSCRIBERS = ("ship", "bill", "audit")
"""Tasks that receive messages. A message's mark and the name of the task are the mark of its run."""
LIMIT = "calls"
"""The limit of steps that operators lower and reset meanwhile."""
NEAR = "near"
"""A label that some workers have and a task prefers: most of the time its runs are left to them, or wait a second."""
HARM_LEASES = 1.5
"""How long culprits block the event loop or hold the GIL, in leases."""
HANG_LEASES = 3.0
effects: Effects


@dataclass(frozen=True)
class Expected:
    """The effects, rows and final states that a root and its descendants must have, by suffix of the mark."""

    effects: Mapping[str, tuple[str, ...]]
    rows: tuple[str, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    in_order: tuple[str, ...] = ()

    def state(self, suffix: str) -> str:
        return self.states.get(suffix, "done")

    @property
    def suffixes(self) -> set[str]:
        return {*self.effects, *self.states}


def of_job(*names: str) -> dict[str, tuple[str, ...]]:
    return {f".{name}": ("job",) for name in names}


FUNCTION = ("s1", "g1", "g2", "s2")
EXPECTED = {
    "job": Expected({"": ("job",)}),
    "thread": Expected({"": ("job",)}),
    "order": Expected({"": FUNCTION, ".c2": ("s1",), **of_job("c1", "m0", "m1", "m2")}, ("t1", "t2")),
    "plain": Expected({"": FUNCTION, ".c2": ("s1",), **of_job("c1", "m0", "m1", "m2")}, ("t1", "t2")),
    "undo": Expected(
        {"": ("u1", "u2", "undo-u1", "undo-u2", "undo-u3"), **of_job("c1")},
        ("t1",),
        {"": "failed"},
        in_order=("undo-u3", "undo-u2", "undo-u1"),
    ),
    "graph": Expected(
        {".c2": ("s1",), **of_job("a", "b", "c", "x", "y", "z")}, ("t2",), {"": "done", ".never": "skipped"}
    ),
    "machine": Expected({"": ("pack", *(f"load{n}" for n in range(LOADS)), "ship")}, ("t1",)),
    "flow": Expected({"": ("l1", "l2"), **of_job("q1", "q2")}),
    "batch": Expected({"": ("job",)}),
    "near": Expected({"": ("job",)}),
    "topic": Expected({"": ("s1", "s2"), **of_job("placed_ship", "placed_audit", "paid_bill", "paid_audit")}),
    "restless": Expected({"": ("rest",)}),
}
"""By kind. A graph has no code of its own, and so no effects."""
REGULAR = tuple(kind for kind in EXPECTED if kind != "restless")
"""The kinds that are started all the time; the others are faults."""


class Pack(State):
    """The first state: synchronous code in a thread."""

    mark: str

    def run(self, ctx: SyncContext) -> After[Load]:
        effects.began(self.mark, ctx.attempt)
        effects.sync_step(ctx, self.mark, "pack")
        return After(0.2, Load(mark=self.mark, number=0))


class Load(State):
    """Repeats."""

    mark: str
    number: int

    async def run(self, ctx: Context) -> Load | Ship:
        effects.began(self.mark, ctx.attempt)
        await effects.step(ctx, self.mark, f"load{self.number}")
        await ctx.sleep(0.1)
        return Load(mark=self.mark, number=self.number + 1) if self.number + 1 < LOADS else Ship(mark=self.mark)


class Ship(State):
    """The last state."""

    mark: str

    async def run(self, ctx: Context) -> Done[str]:
        effects.began(self.mark, ctx.attempt)
        await ctx.transaction(effects.insert, self.mark, "t1")
        await effects.step(ctx, self.mark, "ship")
        return Done(self.mark)


class Move(State):
    """Moves without a pause."""

    mark: str
    left: int

    async def run(self, ctx: Context) -> Move | Done[str]:
        if self.left:
            return Move(mark=self.mark, left=self.left - 1)
        await effects.step(ctx, self.mark, "rest")
        return Done(self.mark)


class Workload:
    """An app with the tasks, and a function to start each kind."""

    def __init__(self, app: Holdfast, ledger: Ledger, lease: float = 3.0) -> None:
        global effects  # States are classes and have no other access to it.
        effects = Effects(ledger)
        self.app = app
        self.job, self.in_thread, self.child = _add_small_tasks(app)
        order, plain, undoing = _add_functions(app, self.job, self.in_thread, self.child)
        flow, batched, near = _add_flow_control(app, self.job)
        publishing = _add_topics(app)
        machine = app.machine("machine", Pack, Load, Ship, max_crashes=MAX_CRASHES)
        restless = app.machine("restless", Move, max_crashes=MAX_CRASHES)
        culprits = add_culprits(app, effects.harm)
        self.start: dict[str, Callable[[str], Run[Any]]] = {
            "job": lambda mark: self.job.options(key=mark).enqueue(mark),
            "thread": lambda mark: self.in_thread.options(key=mark).enqueue(mark),
            "order": lambda mark: order.options(key=mark).enqueue(mark),
            "plain": lambda mark: plain.options(key=mark).enqueue(mark),
            "undo": lambda mark: undoing.options(key=mark).enqueue(mark),
            "machine": lambda mark: machine.options(key=mark).enqueue(Pack(mark=mark)),
            "graph": lambda mark: app.submit(self.graph(mark)),
            "flow": lambda mark: flow.options(key=mark, metadata={"mark": mark}).enqueue(mark),
            "batch": lambda mark: batched.options(key=mark).enqueue(mark),
            "near": lambda mark: near.options(key=mark).enqueue(mark),
            "topic": lambda mark: publishing.options(key=mark).enqueue(mark),
            "restless": lambda mark: restless.options(key=mark).enqueue(Move(mark=mark, left=MOVES)),
        }
        for kind, task in culprits.items():
            seconds = lease * (HANG_LEASES if CULPRITS[kind].harm == HANGS else HARM_LEASES)
            self.start[kind] = partial(_enqueue_culprit, task, seconds)

    def pay(self, mark: str) -> None:
        """Publish the message of a program; with the same key again after a lost answer."""
        self.app.publish(PAID, {"mark": f"{mark}.paid", "kind": "paid"}, key=mark)

    def graph(self, mark: str) -> Graph:
        """Build a graph with a gate, a false condition, a nested graph and a durable function as a node."""
        inner = Graph("inner")
        x = inner.add(self.job, f"{mark}.x", name="x")
        inner.add(self.in_thread, f"{mark}.y", name="y", after=[x])
        outer = Graph("outer", key=mark)
        a = outer.add(self.job, f"{mark}.a", name="a")
        b = outer.add(self.in_thread, f"{mark}.b", name="b", after=[a])
        c = outer.add(self.job, f"{mark}.c", name="c", after=[a])
        ok = outer.gate("ok", after=[b, c], type=str)
        d = outer.add(self.child, f"{mark}.c2", name="d", after=[ok])
        never = outer.add(self.job, f"{mark}.never", name="never", after=[ok], when=ok.output == "no")
        n = outer.add(inner, name="n", after=[ok])
        outer.add(self.job, f"{mark}.z", name="z", after=[d, n, never.finished])
        return outer


def _add_flow_control(app: Holdfast, job: Any) -> tuple[Any, Any, Any]:
    app.limit(LIMIT, concurrency=3, rate="1000/s", cost=2)

    @app.task(name="flow", **SETTINGS)
    async def flow(ctx: Context, mark: str) -> None:
        effects.began(mark, ctx.attempt)
        await effects.step(ctx, mark, "l1", limits=[LIMIT])
        await ctx.adjust(LIMIT, 1)
        await ctx.annotate(stage="queued")
        await ctx.set("stage", "queued")
        for name in ("q1", "q2"):
            await ctx.enqueue(job.options(unique=mark, if_taken="queue"), f"{mark}.{name}")
        await ctx.sleep(0.1)
        await effects.step(ctx, mark, "l2", limits=[LIMIT])

    @app.task(name="batched", batch=Batch(max_size=5, max_wait=0.2), **SETTINGS)
    async def batched(marks: list[str]) -> None:
        await effects.do_batch(marks, "job")

    @app.task(name="near", prefers={NEAR: "yes"}, **SETTINGS)
    async def near(mark: str) -> str:
        return await effects.ado(mark, "job")

    return flow, batched, near


def _add_topics(app: Holdfast) -> Any:
    @app.task(name="publishing", **SETTINGS)
    async def publishing(ctx: Context, mark: str) -> None:
        effects.began(mark, ctx.attempt)
        await effects.step(ctx, mark, "s1")
        await ctx.publish(PLACED, {"mark": f"{mark}.placed", "kind": "placed"})
        await effects.step(ctx, mark, "s2")

    @app.task(name="ship", on=PLACED, **SETTINGS)
    async def ship(message: dict[str, str]) -> None:
        await effects.ado(f"{message['mark']}_ship", "job")

    @app.task(name="bill", on=Topic("orders.*", where={"kind": "paid"}), **SETTINGS)
    def bill(message: dict[str, str]) -> None:
        effects.do(f"{message['mark']}_bill", "job")

    @app.task(name="audit", on="orders.*", **SETTINGS)
    async def audit(message: dict[str, str]) -> None:
        await effects.ado(f"{message['mark']}_audit", "job")

    return publishing


def _enqueue_culprit(task: Any, seconds: float, mark: str) -> Run[Any]:
    run: Run[Any] = task.options(key=mark).enqueue(mark, seconds)
    return run


def _undo(mark: str, name: str, _result: str = "") -> None:
    effects.do(mark, name)


def _add_small_tasks(app: Holdfast) -> tuple[Any, Any, Any]:
    @app.task(name="job", **SETTINGS)
    async def job(mark: str) -> str:
        return await effects.ado(mark, "job")

    @app.task(name="in_thread", **SETTINGS)
    def in_thread(mark: str) -> str:
        return effects.do(mark, "job")

    @app.task(name="child", **SETTINGS)
    def child(ctx: SyncContext, mark: str) -> str:
        effects.began(mark, ctx.attempt)
        effects.sync_step(ctx, mark, "s1")
        ctx.sleep(0.1)
        return str(ctx.transaction(effects.insert, mark.split(".")[0], "t2"))

    return job, in_thread, child


def _add_functions(app: Holdfast, job: Any, in_thread: Any, child: Any) -> tuple[Any, Any, Any]:
    @app.task(name="order", **SETTINGS)
    async def order(ctx: Context, mark: str) -> str:
        effects.began(mark, ctx.attempt)
        await effects.step(ctx, mark, "s1")
        await ctx.transaction(effects.insert, mark, "t1")
        await ctx.sleep(0.3)
        await asyncio.gather(effects.step(ctx, mark, "g1"), effects.step(ctx, mark, "g2"), ctx.call(job, f"{mark}.c1"))
        heard = await ctx.wait_for(f"go {mark}")
        note = await ctx.receive("note")
        spawned = await ctx.spawn(child, f"{mark}.c2")
        await ctx.map(job, [f"{mark}.m{number}" for number in range(3)], concurrency=2)
        await ctx.join(spawned)
        await effects.step(ctx, mark, "s2")
        return f"{heard} {note}"

    @app.task(name="plain", **SETTINGS)
    def plain(ctx: SyncContext, mark: str) -> str:
        effects.began(mark, ctx.attempt)
        effects.sync_step(ctx, mark, "s1")
        spawned = ctx.spawn(child, f"{mark}.c2")
        ctx.transaction(effects.insert, mark, "t1")
        note = ctx.receive("note")
        effects.sync_step(ctx, mark, "g1")
        ctx.call(in_thread, f"{mark}.c1")
        heard = ctx.wait_for(f"go {mark}")
        effects.sync_step(ctx, mark, "g2")
        ctx.map(in_thread, [f"{mark}.m{number}" for number in range(3)])
        ctx.sleep(0.3)
        ctx.join(spawned)
        effects.sync_step(ctx, mark, "s2")
        return f"{heard} {note}"

    @app.task(name="undoing", **SETTINGS)
    async def undoing(ctx: Context, mark: str) -> None:
        effects.began(mark, ctx.attempt)
        await effects.step(ctx, mark, "u1", undo=partial(_undo, mark, "undo-u1"))
        await effects.step(ctx, mark, "u2", undo=partial(_undo, mark, "undo-u2"))
        await ctx.transaction(effects.insert, mark, "t1")
        await ctx.undo(_undo, mark, "undo-u3")
        await ctx.call(job, f"{mark}.c1")
        raise Fatal("enough")

    return order, plain, undoing
