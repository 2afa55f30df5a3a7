"""Run fields on log lines in coroutines, threads and processes, and the JSON format."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import signal
import sys

import pytest
from opentelemetry import trace

from holdfast import Context, Retry, SyncContext
from holdfast.telemetry import JsonLines, RunFields
from tests.support.durable import drain
from tests.support.processes import Processes
from tests.telemetry.tasks import tell

logger = logging.getLogger("shop")
ONCE = Retry(max_attempts=1)


@pytest.fixture
def lines():
    """The log records of the test, as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RunFields())
    handler.setFormatter(JsonLines())
    loggers = [logging.getLogger("holdfast"), logger]
    before = [each.level for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for each, level in zip(loggers, before, strict=True):
        each.removeHandler(handler)
        each.setLevel(level)


def place(run, line):
    return line["run"] == str(run.id) and line["worker"] == run.history()[-1].worker


def test_lines_of_user_code_have_run_fields_in_every_executor(make_app, lines):
    app = make_app()

    def in_a_thread() -> None:
        logger.info("thread")

    @app.task(name="order")
    async def order(ctx: Context) -> None:
        logger.info("body")
        await ctx.step(in_a_thread, name="plain")
        await asyncio.gather(asyncio.to_thread(in_a_thread), asyncio.create_task(later()))

    async def later() -> None:
        logger.info("task")

    @app.task(name="plain")
    def plain(ctx: SyncContext) -> None:
        ctx.step(in_a_thread, name="plain", timeout=60)

    runs = {"order": order.enqueue(), "plain": plain.enqueue()}
    drain(app)
    mine = [line for line in lines() if line["logger"] == "shop"]
    assert sorted((line["task"], line["message"], line["attempt"]) for line in mine) == [
        ("order", "body", 1), ("order", "task", 1), ("order", "thread", 1), ("order", "thread", 1),
        ("plain", "thread", 1),
    ]  # fmt: skip
    assert all(place(runs[line["task"]], line) for line in mine)


def test_lines_outside_runs_have_no_run(make_app, lines):
    logger.info("alone")
    (line,) = lines()
    assert line.keys() == {"time", "level", "logger", "message"}


def test_holdfasts_lines_about_a_run_name_the_worker(make_app, lines):
    app = make_app()

    @app.task(name="fails", retry=ONCE)
    async def fails() -> None:
        raise ValueError("no")

    run = fails.enqueue()
    drain(app)
    (line,) = [line for line in lines() if line["level"] == "ERROR"]
    assert line["task"] == "fails"
    assert place(run, line)


def test_each_attempt_logs_its_own_number(make_app, lines):
    app = make_app()

    @app.task(name="twice", retry=Retry(max_attempts=2, delay=0))
    def twice() -> None:
        logger.info("try")
        raise ValueError

    twice.enqueue()
    drain(app)
    assert [line["attempt"] for line in lines() if line["message"] == "try"] == [1, 2]


def test_lines_inside_a_span_have_its_ids(app, lines):
    @app.task(name="traced")
    async def traced() -> str:
        logger.info("here")
        return f"{trace.get_current_span().get_span_context().span_id:016x}"

    run = traced.enqueue()
    drain(app)
    (line,) = [line for line in lines() if line["message"] == "here"]
    assert line["span_id"] == run.result()
    assert len(line["trace_id"]) == 32


def test_lines_about_failures_have_the_ids_of_the_attempts_span(app, lines, spans):
    @app.task(name="fails", retry=Retry(max_attempts=2, delay=0))
    async def fails() -> None:
        raise ValueError("no")

    fails.enqueue()
    drain(app)
    failures = [line for line in lines() if line["message"].startswith("run failed")]
    attempts = [span.context for span in spans.named("fails")]
    assert [line["level"] for line in failures] == ["WARNING", "ERROR"]
    assert [line["span_id"] for line in failures] == [f"{each.span_id:016x}" for each in attempts]
    assert [line["trace_id"] for line in failures] == [f"{each.trace_id:032x}" for each in attempts]


def test_a_task_in_a_process_continues_the_trace_of_its_run(app, spans):
    run = app.task(name="tell", run_in="process")(tell).enqueue("rope")
    drain(app)
    assert run.result()[1] == f"{spans.one('tell').context.trace_id:032x}"


def formatted(message, *args, **more):
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, message, args, more.pop("exc_info", None))
    vars(record).update(more)
    line = JsonLines().format(record)
    assert "\n" not in line
    return json.loads(line)


def test_json_has_extra_fields_and_exceptions_in_one_line():
    try:
        raise ValueError("two\nlines \x1b[31m \ud800")
    except ValueError:
        line = formatted("a %s", "b\nc", exc_info=sys.exc_info(), order=7, odd=object)
    assert (line["message"], line["order"], line["odd"]) == ("a b\nc", 7, "<class 'object'>")
    assert line["exception"].startswith("Traceback")
    assert line["time"].endswith("+00:00")


APP = """
import logging
from holdfast import Holdfast
from tests.telemetry.tasks import tell

app = Holdfast({url!r})
beside = app.task(name="beside", run_in="process")(tell)
here = app.task(name="here")(tell)
"""


@pytest.mark.parametrize("processes", [[], ["--processes", "1"]], ids=["alone", "supervised"])
def test_workers_and_task_processes_write_json_lines(processes, database_url, make_app, tmp_path):
    (tmp_path / "shop_app.py").write_text(APP.format(url=database_url))
    app = make_app()
    started = Processes(tmp_path)
    try:
        worker = started.start(
            "-m", "holdfast.cli", "worker", "--app", "shop_app:app", "--log-format", "json", *processes,
            cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        runs = {name: app.remote(name).enqueue("rope") for name in ("beside", "here")}
        for run in runs.values():
            run.result(timeout=60)
        worker.signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        started.close()
    lines = [json.loads(line) for line in worker.log.splitlines()]
    told = {line["task"]: line for line in lines if line["message"] == "at work on rope"}
    assert told.keys() == runs.keys()
    assert all(place(runs[task], line) for task, line in told.items())
