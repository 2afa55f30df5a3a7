"""Declaring schedules and triggers: checked at once, without a database."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast, Request
from holdfast.errors import BadArguments, ConfigError, TaskError


@pytest.fixture
def app(tmp_path):
    """An app whose database can't be used: declaring must not touch it."""
    return Holdfast("postgresql://127.0.0.1:1/nowhere")


@pytest.fixture
def report(app):
    @app.task(name="report")
    def report(day: str = "today") -> str:
        return day

    return report


def nothing() -> list[Request[str]]:
    return []


NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "set exactly one of cron='0 3 \\* \\* \\*' and every=60"),
        ({"cron": "0 3 * * *", "every": 5}, "exactly one of"),
        ({"cron": "0 0 30 2 *"}, "never matches"),
        ({"cron": "x" * 10_240}, "500 characters"),
        ({"cron": "0 3 * * *", "tz": "Europe/Londno"}, "did you mean Europe/London"),
        ({"every": 60, "tz": "Europe/London"}, "tz= applies to cron= only"),
        ({"every": 0.5}, "every must be at least 1 s, not 0.5"),
        ({"every": -1}, "must not be negative"),
        ({"every": "60"}, "a timedelta or a number of seconds, not str"),
        ({"every": 60, "jitter": 60}, "jitter must be less than every"),
        ({"every": 60, "jitter": -1}, "jitter must not be negative"),
        ({"every": 60, "catch_up": "some"}, "catch_up must be one of 'skip', 'latest', 'all', not 'some'"),
        ({"every": 60, "overlap": "queue"}, "overlap must be one of 'allow', 'skip', 'buffer_one', 'cancel_running'"),
        ({"every": 60, "start": datetime(2027, 1, 1)}, "start needs a time zone"),  # noqa: DTZ001
        ({"every": 60, "start": NOON, "end": NOON - timedelta(1)}, "is before its start"),
        ({"cron": "0 3 * * *", "start": NOON, "end": NOON + timedelta(hours=1)}, "has no slot between"),
        ({"every": 60, "args": "today"}, "args must be a tuple"),
        ({"every": 60, "when": "soon"}, "unknown setting 'when'; the settings are args, cron"),
    ],
)
def test_invalid_settings_are_rejected_at_declaration(app, report, settings, says):
    with pytest.raises(ConfigError, match=says):
        app.schedule("nightly", report, **settings)
    assert not app._schedule_registry


def test_schedule_errors_name_the_schedule(app, report):
    with pytest.raises(ConfigError, match="schedule nightly: cron"):
        app.schedule("nightly", report, cron="nonsense")


@pytest.mark.parametrize(
    ("option", "value"),
    [("key", "k"), ("run_at", NOON), ("connection", object()), ("deadline", NOON)],
)
def test_options_that_would_be_the_same_for_every_slot_are_refused(app, report, option, value):
    with pytest.raises(ConfigError, match=f"schedule nightly: remove option {option}"):
        app.schedule("nightly", report.options(**{option: value}), every=60)


def test_arguments_are_checked_at_the_declaration(app, report):
    with pytest.raises(BadArguments):
        app.schedule("nightly", report, args=(1, 2), every=60)
    with pytest.raises(BadArguments):
        app.schedule("nightly", report, args=(5,), every=60)
    with pytest.raises(ConfigError, match="remove args="):
        app.schedule("nightly", report.request("monday"), args=("x",), every=60)
    with pytest.raises(ConfigError, match="needs a task or a request, not str"):
        app.schedule("nightly", "report", every=60)
    with pytest.raises(TaskError, match="nested functions and lambdas have no stable name"):
        app.schedule("nightly", lambda: None, every=60)


def test_tasks_requests_and_remote_tasks_can_be_scheduled(app, report):
    app.schedule("a", report, cron="@daily")
    app.schedule("b", report.options(queue="slow").request("monday"), every=timedelta(hours=1), jitter=30)
    app.schedule("c", report, args=("tuesday",), cron="0 3 * * *", tz="Asia/Tokyo", overlap="skip", catch_up="all")
    app.schedule("d", app.remote("billing.close"), args=(2027,), every=60, start=NOON, end=NOON + timedelta(1))
    requests = {name: each.request for name, each in app._schedule_registry.schedules.items()}
    assert [request.args for request in requests.values()] == [
        "{}",
        '{"day":"monday"}',
        '{"day":"tuesday"}',
        '{"*":[2027]}',
    ]


def test_two_of_one_name_are_refused_but_the_same_module_may_be_imported_twice(app, report):
    app.schedule("nightly", report, every=60)
    app.schedule("nightly", report, every=60)
    with pytest.raises(ConfigError, match="two schedules or triggers have the name 'nightly'"):
        app.schedule("nightly", report, every=61)
    with pytest.raises(ConfigError, match="two schedules or triggers"):
        app.trigger("nightly", every=60)(nothing)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 5, None])
def test_names_are_checked(app, report, name):
    with pytest.raises(ConfigError, match="the name of a schedule"):
        app.schedule(name, report, every=60)
    with pytest.raises(ConfigError, match="the name of a trigger"):
        app.trigger(name, every=60)(nothing)


@pytest.mark.parametrize(
    ("settings", "fn", "says"),
    [
        ({"every": 0}, nothing, "every must be at least 1 s"),
        ({"every": 60, "timeout": 0}, nothing, "timeout must be at least 1 s"),
        ({"every": 60}, lambda folder: [], "called without arguments but requires folder"),
        ({"every": 60}, "files", "must be a function that yields requests, not str"),
    ],
)
def test_invalid_triggers_are_rejected(app, settings, fn, says):
    with pytest.raises(ConfigError, match=f"trigger files.*{says}"):
        app.trigger("files", **settings)(fn)


def test_the_decorator_returns_the_function(app):
    assert app.trigger("files", every=30)(nothing) is nothing


SCRIPT = """
from holdfast import Holdfast
app = Holdfast()
if __name__ == "__main__":
    import shop
    print(app._schedule_registry.app, shop.app._schedule_registry.app, Holdfast(name="mine")._schedule_registry.app)
"""


def test_an_app_is_named_after_its_module_even_as_a_script(tmp_path):
    (tmp_path / "shop.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["shop", "shop", "mine"]
