"""State machines: typed states, a retry budget per state, only the current state stored."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from holdfast import After, Context, Done, Graph, Retry, State, SyncContext
from holdfast.errors import BadArguments, ConfigError, DuplicateTask, RunFailed, TaskError
from tests.support.durable import drain, kinds, state


class Greet(State):
    name: str
    when: datetime

    async def run(self, ctx: Context) -> Ask:
        assert isinstance(self.when, datetime)
        return Ask(name=await ctx.step(upper, self.name))


class Ask(State):
    name: str
    times: int = 0

    def run(self, ctx: SyncContext) -> Ask | Done[str]:
        ctx.step(upper, str(self.times))
        return Done(self.name) if self.times == 2 else Ask(name=self.name, times=self.times + 1)


def upper(text: str) -> str:
    return text.upper()


WHEN = datetime.fromisoformat("2026-11-16T03:00:00+00:00")


def moves(run):
    return [(entry.data["from"], entry.data["to"]) for entry in run.history() if entry.kind == "moved"]


def test_a_machine_moves_through_sync_and_async_states(app):
    run = app.machine("signup", Greet, Ask).enqueue(Greet(name="ada", when=WHEN))
    drain(app)
    assert run.result(timeout=5) == "ADA"
    assert moves(run) == [("Greet", "Ask"), ("Ask", "Ask"), ("Ask", "Ask")]
    assert kinds(run)[-2:] == ["started", "done"]


def test_checkpoints_of_a_state_are_removed_after_the_transition(app):
    run = app.machine("signup", Greet, Ask).enqueue(Greet(name="ada", when=WHEN))
    drain(app)
    assert [step.key for step in app.store.queries.steps(str(run.id))] != []
    assert len(app.store.queries.steps(str(run.id))) == 1, "of the last state only"


def test_after_schedules_the_run_by_the_database_clock(timed_app, clock):
    class Wait(State):
        left: int

        async def run(self, ctx: Context) -> After[Wait] | Done[str]:
            return After(timedelta(days=30), Wait(left=self.left - 1)) if self.left else Done("over")

    run = timed_app.machine("wait", Wait).enqueue(Wait(left=2))
    for _ in range(2):
        drain(timed_app)
        assert state(run) == "scheduled"
        clock.forward(30 * 24 * 3600 - 1)
        drain(timed_app)
        assert state(run) == "scheduled"
        clock.forward(2)
    drain(timed_app)
    assert run.result(timeout=5) == "over"


def test_returning_none_finishes_the_machine(app):
    class End(State):
        async def run(self, ctx: Context) -> None:
            return None

    run = app.machine("end", End).enqueue(End())
    drain(app)
    assert run.result(timeout=5) is None


def test_each_transition_resets_the_retry_budget(app, ledger):
    class Shaky(State):
        left: int
        retry = Retry(max_attempts=3, delay=0)

        async def run(self, ctx: Context) -> Shaky | Done[str]:
            ledger.write(str(self.left), str(ctx.attempt))
            if ctx.attempt < 3:
                raise ValueError("again")
            return Shaky(left=self.left - 1) if self.left else Done("through")

    run = app.machine("shaky", Shaky).enqueue(Shaky(left=2))
    with app.worker():
        assert run.result(timeout=20) == "through"
    assert ledger.lines() == [f"{left} {attempt}" for left in (2, 1, 0) for attempt in (1, 2, 3)]


def test_a_state_without_a_retry_uses_that_of_the_machine(app, ledger):
    class Bad(State):
        async def run(self, ctx: Context) -> None:
            ledger.write("tried")
            raise ValueError("no")

    run = app.machine("bad", Bad, retry=Retry(max_attempts=2, delay=0)).enqueue(Bad())
    with app.worker(), pytest.raises(RunFailed):
        run.result(timeout=20)
    assert len(ledger.lines()) == 2


def test_the_timeout_of_a_state_ends_its_attempt(app):
    class Slow(State):
        timeout = 0.05
        retry = Retry(max_attempts=1)

        async def run(self, ctx: Context) -> None:
            await ctx.step(forever, name="forever")

    async def forever() -> None:
        import asyncio

        await asyncio.Event().wait()

    run = app.machine("slow", Slow).enqueue(Slow())
    with app.worker(), pytest.raises(RunFailed, match=r"timeout of 0\.05 s"):
        run.result(timeout=20)


def test_a_waiting_state_resumes_with_its_steps(app, ledger):
    class First(State):
        async def run(self, ctx: Context) -> Second:
            await ctx.step(note, "first", name="note")
            return Second()

    class Second(State):
        async def run(self, ctx: Context) -> Done[str]:
            await ctx.step(note, "second", name="note")
            await ctx.wait_for("go")
            return Done("went")

    def note(what: str) -> None:
        ledger.write(what)

    run = app.machine("two", First, Second).enqueue(First())
    drain(app)
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == "went"
    assert ledger.lines() == ["first", "second"], "the steps of a state are kept while it waits"


def test_an_unreadable_state_fails_and_stays_stored(make_app):
    class Renamed(State):
        async def run(self, ctx: Context) -> None: ...

    old, new = make_app(), make_app()
    run = old.machine("signup", Greet, Ask).enqueue(Ask(name="ada", times=2))
    kept = old.store.queries.details(str(run.id)).args
    new.machine("signup", Renamed)
    drain(new)
    info = run.info()
    assert (info.state, info.error.code) == ("failed", "bad_state")
    assert "stored state 'Ask' does not exist" in info.error.message
    assert old.store.queries.details(str(run.id)).args == kept
    run.retry()
    drain(old)
    assert run.result(timeout=5) == "ada"


def test_a_new_field_needs_a_default(make_app):
    def machine(app, default):
        namespace = {"__annotations__": {"a": int, "b": int}, "run": returns_both}
        if default:
            namespace["b"] = 7
        return app.machine("grow", type(State)("Grow", (State,), namespace))

    async def returns_both(self, ctx: Context):
        return Done([self.a, self.b])

    async def returns_one(self, ctx: Context):
        return Done(self.a)

    before, without, mended = make_app(), make_app(), make_app()
    old = type(State)("Grow", (State,), {"__annotations__": {"a": int}, "run": returns_one})
    run = before.machine("grow", old).enqueue(old(a=1))
    machine(without, default=False)
    drain(without)
    assert run.info().error.code == "bad_state"
    run.retry()
    machine(mended, default=True)
    drain(mended)
    assert run.result(timeout=5) == [1, 7]


@pytest.mark.parametrize("value", [3, "Ask", Done])
def test_returning_anything_but_a_state_fails_the_run(app, value, ledger):
    class Odd(State):
        async def run(self, ctx: Context) -> object:
            ledger.write("tried")
            return value

    run = app.machine("odd", Odd).enqueue(Odd())
    drain(app)
    assert run.info().error.code == "bad_state"
    assert len(ledger.lines()) == 1


def test_a_state_of_another_machine_is_rejected(app):
    class Stray(State):
        async def run(self, ctx: Context) -> object:
            return Ask(name="x")

    run = app.machine("stray", Stray).enqueue(Stray())
    drain(app)
    assert "has no state Ask(" in run.info().error.message


def test_states_are_checked_at_enqueue(app):
    signup = app.machine("signup", Greet, Ask)
    with pytest.raises(BadArguments, match="state Ask of machine signup: Expected `str`, got `int`"):
        signup.enqueue(Ask(name=3))
    with pytest.raises(BadArguments, match="takes one state"):
        signup.enqueue()
    with pytest.raises(BadArguments, match="has no state 3"):
        signup.enqueue(3)


def test_a_state_can_be_given_by_name_and_fields(app):
    signup = app.machine("signup", Greet, Ask)
    run = signup.enqueue({"state": "Ask", "fields": {"name": "ada", "times": 2}})
    drain(app)
    assert run.result(timeout=5) == "ada"
    for given in ({}, {"state": "Ask"}, {"state": ["Ask"], "fields": {}}, {"state": "Nope", "fields": {}}):
        with pytest.raises(BadArguments, match=r"takes one state, like Greet\(…\), or as JSON .*states are Greet, Ask"):
            signup.enqueue(given)
    with pytest.raises(BadArguments, match="state Ask of machine signup: Expected `str`, got `int`"):
        signup.enqueue({"state": "Ask", "fields": {"name": 3}})
    with pytest.raises(BadArguments, match="Expected `object`, got `array`"):
        signup.enqueue({"state": "Ask", "fields": [1]})


def test_declarations_are_checked(app):
    class Mute(State):
        pass

    class Wrong(State):
        async def run(self, ctx: SyncContext) -> None: ...

    class Crowded(State):
        async def run(self, ctx: Context, more: int) -> None: ...

    with pytest.raises(ConfigError, match="no states"):
        app.machine("none")
    with pytest.raises(ConfigError, match="is not a subclass of State"):
        app.machine("int", int)
    with pytest.raises(ConfigError, match="two states named Ask"):
        app.machine("twice", Ask, Ask)
    with pytest.raises(TaskError, match="has no run"):
        app.machine("mute", Mute)
    with pytest.raises(TaskError, match="an async def run takes a Context"):
        app.machine("wrong", Wrong)
    with pytest.raises(TaskError, match="self and a context"):
        app.machine("crowded", Crowded)
    with pytest.raises(ConfigError, match="history must be a number"):
        app.machine("short", Ask, history=0)
    app.machine("same", Ask)
    app.machine("same", Ask)
    with pytest.raises(DuplicateTask):
        app.machine("same", Greet)
    with pytest.raises(TaskError, match="retry is a setting of states"):
        type(State)("Odd", (State,), {"__annotations__": {"retry": int}})


def test_the_history_is_bounded_and_the_row_stays_small(app):
    class Round(State):
        left: int

        async def run(self, ctx: Context) -> Round | Done[None]:
            await ctx.step(upper, "a")
            return Round(left=self.left - 1) if self.left else Done()

    run = app.machine("round", Round, history=10).enqueue(Round(left=60))
    drain(app)
    assert state(run) == "done"
    assert kinds(run) == ["enqueued", *["started", "moved"] * 10, "started", "done"], (
        "ten transitions, and the last state"
    )
    assert len(app.store.queries.steps(str(run.id))) == 1


def test_a_machine_has_limits_and_former_names(app, make_app):
    app.limit("few", rate="100/min", by="fields.name")
    old = app.machine("signup", Ask, limits=["few"])
    run = old.enqueue(Ask(name="ada"))
    renamed = make_app()
    renamed.limit("few", rate="100/min", by="fields.name")
    renamed.machine("register", Ask, aliases=["signup"], limits=["few"])
    with renamed.worker():
        assert run.result(timeout=20) == "ada"
    assert [counter.key for counter in app.store.limits.counters("few")] == ['"ada"']


@pytest.mark.slow
def test_the_cost_of_a_transition_is_constant_over_100_000(app):
    class Round(State):
        left: int

        async def run(self, ctx: Context) -> Round | Done[int]:
            return Round(left=self.left - 1) if self.left else Done(0)

    run = app.machine("round", Round, history=10).enqueue(Round(left=100_000))
    app.worker().drain()
    assert run.result(timeout=5) == 0
    assert kinds(run).count("moved") == 10


def test_a_machine_can_be_a_child_and_a_node_and_have_a_key(app):
    signup = app.machine("signup", Greet, Ask)

    @app.task(name="parent")
    async def parent(ctx: Context) -> list[str]:
        return [await ctx.call(signup, Ask(name="child")), *await ctx.map(signup, [Ask(name="a"), Ask(name="b")])]

    run = parent.enqueue()
    graph = Graph("machines")
    first = graph.add(signup, Ask(name="node"), name="first")
    second = graph.add(signup, Ask(name=first.output), name="second")
    other = app.submit(graph, result=second)
    same = [signup.options(key="k").enqueue(Ask(name="x")) for _ in range(2)]
    with app.worker():
        assert run.result(timeout=20) == ["child", "a", "b"]
        assert other.result(timeout=20) == "node"
        assert same[0].result(timeout=20) == "x"
    assert same[0] == same[1]
