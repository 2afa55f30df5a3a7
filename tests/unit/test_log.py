"""Log lines: events with fields, and their format in a terminal."""

from __future__ import annotations

import inspect
import io
import logging
import re

import pytest

from holdfast.errors import ErrorInfo
from holdfast.telemetry import log
from holdfast.telemetry.log_format import ConsoleFormatter, configure_console_log, use_color

FILLED = {
    "run": "0190", "task": "shop.charge", "attempt": 3, "error": ErrorInfo("error", "ValueError", "no"),
    "retry_in": 1.5, "final": True,
    "session": "host:7:ab", "database": "sqlite:///x.db", "tasks": 2, "concurrency": 10, "running": 4, "grace": 30,
    "finished": 5, "why": "its lease ran out", "seconds": 2.0, "runs": 6, "sessions": ["a", "b"],
    "events": 3, "lanes": 2, "queue": "mail", "columns": ["args"], "excused": False,
    "requeued": 1, "failed": 2, "loop": "claimer", "hook": "on_stop close", "processes": 4, "number": 2, "pid": 77,
    "how": "was killed by SIGKILL", "pause": 0.5, "children": 4, "tries": 3, "kind": "waiting", "steps": "charge",
    "name": "nightly", "app": "shop", "before": "bank", "what": "the result", "change": "added",
    "names": ["nightly"], "file": "shop.db", "slot": "03:00", "agent": "research", "advice": "metadata",
    "made": "0190", "trouble": "TypeError: moon", "said": "ValueError: no\nway",
    "lost_threads": 2, "lost": 2, "others": 3, "blocker": "shop.charge 0190", "released": 1, "reason": "loop blocked",
    "stack": "File x.py\n  sleep()", "where": "GET /a\nb", "by": "ada", "size": 300_000, "failed_run": "0190",
    "client": "10.0.0.7", "ask": "add", "path": "/a", "renamed": {}, "threads": 40, "token": "ops", "topic": "news",
    "step": "charge", "queued": 1000, "tenant": "acme",
    "executor": "gpu", "call": "charge", "limit": 67108864,
    "at_once": 8, "dropped": 2, "reasons": ["no worker serves queue mail"],
}  # fmt: skip

LINES = {name: fn for name, fn in inspect.getmembers(log, inspect.isfunction) if not name.startswith("_")}
ABOUT_RUNS = {name for name, fn in LINES.items() if {"run", "task"} <= set(inspect.signature(fn).parameters)}


def arguments(fn):
    given = {}
    for name, parameter in inspect.signature(fn).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= {"trace_id": "4bf9", "span_id": "00f0"}
            continue
        given[name] = ["shop.charge 0190"] if name == "running" and fn in LISTING else FILLED[name]
    if fn in (log.trigger_failed, log.request_failed):
        given["error"] = ValueError("no")
    return given


LISTING = (log.session_lost, log.heartbeat_delayed)


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.DEBUG, "holdfast")
    return caplog


@pytest.mark.parametrize("name", LINES)
def test_every_event_is_one_record_on_one_line(name, logged):
    LINES[name](**arguments(LINES[name]))
    assert len(logged.records) == 1
    assert "\n" not in logged.records[0].getMessage()


@pytest.mark.parametrize("name", sorted(ABOUT_RUNS))
def test_lines_about_runs_have_run_task_and_attempt(name, logged):
    LINES[name](**arguments(LINES[name]))
    (record,) = logged.records
    assert (record.run, record.task, record.attempt) == ("0190", "shop.charge", 3)
    assert " task=shop.charge run=0190 attempt=3" in record.getMessage()


def test_successful_runs_are_logged_at_debug(logged):
    log.attempt_done("0190", "shop.charge", 1)
    log.attempt_released("0190", "shop.charge", 1)
    assert [record.levelname for record in logged.records] == ["DEBUG", "DEBUG"]


def test_a_retry_is_a_warning_and_a_failure_an_error(logged):
    log.attempt_failed("0190", "shop.charge", 1, ErrorInfo("error", "ValueError", "no"), 2.0)
    log.attempt_failed("0190", "shop.charge", 2, ErrorInfo("error", "ValueError", "no"), None)
    assert [record.levelname for record in logged.records] == ["WARNING", "ERROR"]
    assert [record.getMessage() for record in logged.records] == [
        'run failed task=shop.charge run=0190 attempt=1 error="ValueError: no" retry_in=2.0s',
        'run failed permanently task=shop.charge run=0190 attempt=2 error="ValueError: no"',
    ]


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("shop.charge", "shop.charge"), ("", '""'), ("a b", '"a b"'), ("x=1", '"x=1"'), ('say "no"', "'say \"no\"'"),
        ("it's \"no\"", '"it\'s \\"no\\""'), ("a\nb\x1b", '"a\\nb\\x1b"'), ("c:\\d", '"c:\\\\d"'),
    ],
)  # fmt: skip
def test_a_value_is_one_field_on_one_line(value, quoted, logged):
    log.worker_restarting(value)
    assert logged.records[0].getMessage() == f"worker restarting reason={quoted}"


def test_bad_arguments_are_not_logged(logged):
    log.attempt_failed("0190", "shop.charge", 1, ErrorInfo("bad_arguments", "BadArguments", "value 's3cret'"), None)
    assert "s3cret" not in logged.text


def test_no_log_function_takes_arguments_or_results():
    given = {name for fn in LINES.values() for name in inspect.signature(fn).parameters}
    assert given & {"args", "arguments", "kwargs", "result", "value", "url", "password"} == set()


def test_the_logger_is_silent_by_default():
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("holdfast").handlers)


# In a terminal


def shown(message, level=logging.INFO, *, colours=False, prefix="", **more):
    record = logging.LogRecord("holdfast", level, __file__, 1, message, (), None, **more)
    return ConsoleFormatter(colours, prefix).format(record)


def test_a_line_has_time_level_and_message():
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING run 1 failed", shown("run 1 failed", logging.WARNING))


def test_multiline_text_is_indented_and_escaped():
    text = shown("failed: first\nsecond\r\x1b[31mred\x07", prefix="holdfast | ")
    assert text.split("\n")[1] == "holdfast |     second\\r\\x1b[31mred\\x07"
    assert all(line.startswith("holdfast | ") for line in text.split("\n"))


def test_colors_mark_warnings_and_errors():
    assert "\x1b[33m" in shown("x", logging.WARNING, colours=True)
    assert "\x1b[31m" in shown("x", logging.ERROR, colours=True)
    assert re.fullmatch("\x1b\\[2m[\\d:]{8}\x1b\\[0m INFO    x", shown("x", colours=True))


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "env", "expected"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colors_depend_on_terminal_and_environment(stream, env, expected, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert use_color(stream) is expected


@pytest.mark.parametrize(("verbose", "level"), [(False, logging.INFO), (True, logging.DEBUG)])
def test_verbose_sets_the_level_to_debug(verbose, level, monkeypatch):
    logger, root = logging.getLogger("holdfast"), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before, root_before = logger.level, root.level
    try:
        configure_console_log(verbose)
        assert (logger.level, root.level) == (level, logging.WARNING)
    finally:
        logger.setLevel(before)
        root.setLevel(root_before)
