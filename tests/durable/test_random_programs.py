"""Random programs of concurrent branches, interrupted anywhere: user code observes the same order in a replay."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from holdfast.engine.loops import known_lanes
from holdfast.model.asks import asked_name
from holdfast.model.topics import parse_inbox
from tests.support.asks import send_ask
from tests.support.durable import kinds
from tests.support.permits import in_use
from tests.support.programs import NEAR, Interpreter, logger, names, programs
from tests.support.wait_until import wait_until

STEPS = ("step", "thread", "fail", "again", "value")
SETTINGS = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


def emit_what_it_waits_for(app, run, emitted):
    """Emit one event, or send one message or ask, that a suspended run waits for; return whether the run has ended.

    One of another type precedes the one that fits: a message of it is set aside, an ask is refused.
    """
    info = run.info()
    if info.state == "waiting":
        for wait in app.store.queries.waits(str(run.id)):
            if wait.kind == "event" and wait.outcome is None and wait.key not in emitted:
                emitted.add(wait.key)
                if wait.key.startswith("$budget:"):
                    app.budgets.set("usd", app.budgets.total("usd", run=run.id).limit * 2, run=run.id)
                    break
                app.emit(wait.key.removeprefix("$event:").rpartition("#")[0], wait.key)
                break
            if wait.kind == "message" and wait.outcome is None and wait.key not in emitted:
                emitted.add(wait.key)
                if (inbox := parse_inbox(wait.target)) is not None:
                    for number in ("no number", len(emitted)):
                        app.publish(inbox.pattern, {"fits": True, "number": number})
                    break
                send = run.send if (name := asked_name(wait.target)) is None else partial(send_ask, run)
                send(name or wait.target, "no number")
                send(name or wait.target, len(emitted))
                break
    return info.state in ("done", "failed")


def play(app, interpreter, program):
    """Run a program to its end; return what each attempt observed."""
    run = interpreter.program.enqueue(program)
    emitted = set()
    wait_until(lambda: emit_what_it_waits_for(app, run, emitted), what=f"end of {program}")
    return run, interpreter.seen[str(run.id)]


def spent(program):
    """Return what the leaves of a program spend in all."""
    kind, turns, _, inside = program
    if isinstance(inside, str):
        return Decimal(turns) / 100 if kind in ("spend", "paid") else Decimal(0)
    return sum(map(spent, inside), Decimal(0))


def check(seen, program):
    for before, after in pairwise(seen):
        assert after[: len(before)] == before, f"{program}: user code saw another order in a replay"


def run_programs(app, ledger, examples, leaves, widest=4, concurrency=1, max_resident=0):
    interpreter = Interpreter(app, ledger)

    @settings(SETTINGS, max_examples=examples)
    @given(programs(leaves, widest))
    def each(program):
        ledger.path.unlink(missing_ok=True)
        run, seen = play(app, interpreter, program)
        check(seen, program)
        assert run.info().state == "done", kinds(run)
        counts = ledger.counts()
        again = sum(name.startswith("again") for name in names(program))
        if "crash" not in leaves:
            assert kinds(run).count("step_retrying") == again
        for name in names(program):
            if name.startswith(("step", "thread", "fail")) and "crash" not in leaves:
                assert counts[name] == 1, f"{program}: {name} ran {counts[name]} times"
            elif name.startswith("again") and "crash" not in leaves:
                assert counts[name] == 2, f"{program}: {name} ran {counts[name]} times"
            elif name.startswith("crash"):
                assert counts[name] >= 2
        annotated = [line.split()[1] for line in seen[-1] if line.startswith("has annotate")]
        assert run.info().metadata.get("last") == (annotated[-1] if annotated else None), f"{program}: {seen[-1]}"
        shown = [line.split()[1] for line in seen[-1] if line.startswith("has set")]
        assert run.get("last") == (shown[-1] if shown else None), f"{program}: {seen[-1]}"
        got = [str(info.args).partition(str(run.id))[2] for info in app.runs(task="subscriber", limit=100)]
        sent = [name for name in names(program) if name.startswith("publish")]
        assert all(sum(f" {name}'" in args for args in got) == 1 for name in sent), f"{program}: {sent}, {got}"
        assert app.store.asks.pending(str(run.id)) == [], f"{program}: an ask wasn't answered"
        assert run.spent().get("usd", 0) == spent(program), f"{program}: it has spent another amount"
        if app._logs is not None and "crash" not in leaves:
            assert [line.message for line in run.logs()] == seen[-1], f"{program}: a line is missing or repeated"
        if max_resident == 0 and any(name.startswith(("wait", "crash")) for name in names(program)):
            assert len(seen) > 1, f"{program}: it wasn't interrupted"

    with ExitStack() as workers:
        if "near" in leaves:
            workers.enter_context(app.worker(queues=["near"], labels=NEAR))
        workers.enter_context(app.worker(concurrency=concurrency, max_resident=max_resident))
        each()
    assert interpreter.loops["near"].isdisjoint(interpreter.loops["program"]), "another worker executed its children"


def test_suspended_programs_resume_with_the_same_history(app, ledger):
    run_programs(app, ledger, 40, (*STEPS, "wait", "wait"))


@pytest.mark.parametrize("max_resident", [0, 1000])
def test_programs_with_sleeps_and_children_resume_with_the_same_history(app, ledger, monkeypatch, max_resident):
    monkeypatch.setattr(known_lanes, "PREFERENCE_S", 3600.0)
    leaves = (*STEPS, "wait", "message", "ask", "sleep", "child", "broken", "annotate", "set", "limited", "adjusted")
    leaves = (*leaves, "spend", "paid", "topic", "publish", "near")
    run_programs(app, ledger, 20, leaves, concurrency=2, max_resident=max_resident)


@pytest.mark.parametrize("max_resident", [0, 1000])
def test_programs_that_lost_their_lease_resume_with_the_same_history(app, ledger, max_resident):
    leaves = (*STEPS, "wait", "ask", "annotate", "set", "limited", "adjusted", "spend", "paid", "publish", "crash")
    run_programs(app, ledger, 12, leaves, concurrency=2, max_resident=max_resident)
    assert in_use(app.store) == {}


@pytest.fixture
def logging_app(make_app):
    """Return an app that keeps what programs log."""
    logger.setLevel(logging.INFO)
    yield make_app(logs="debug")
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("max_resident", [0, 1000])
def test_interrupted_programs_keep_each_line_of_their_code_once(logging_app, ledger, max_resident):
    leaves = (*STEPS, "wait", "message", "child", "broken", "annotate")
    run_programs(logging_app, ledger, 12, leaves, concurrency=2, max_resident=max_resident)


@pytest.mark.slow
@pytest.mark.parametrize("max_resident", [0, 1000])
def test_large_interrupted_programs_keep_each_line_of_their_code_once(logging_app, ledger, max_resident):
    run_programs(logging_app, ledger, 150, (*STEPS, "wait", "sleep", "child"), 6, 20, max_resident)


@pytest.mark.slow
@pytest.mark.parametrize("max_resident", [0, 1000])
@pytest.mark.parametrize("concurrency", [1, 20])
@pytest.mark.parametrize(
    "leaves", [(*STEPS, "wait"), (*STEPS, "wait", "sleep", "child", "broken"), (*STEPS, "wait", "crash")]
)
def test_large_programs_resume_with_the_same_history(app, ledger, leaves, concurrency, max_resident):
    run_programs(app, ledger, 300, leaves, widest=6, concurrency=concurrency, max_resident=max_resident)
