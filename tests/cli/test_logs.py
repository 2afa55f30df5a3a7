"""`holdfast logs`: the lines of a run, all of them or as they come."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from holdfast import Holdfast, Logs
from tests.support.wait_until import wait_until

logger = logging.getLogger("tests.cli")
GO = threading.Event()


@pytest.fixture
def app(database_url):
    logger.setLevel(logging.INFO)
    GO.clear()
    app = Holdfast(database_url, logs=Logs("info", max_lines=20))

    @app.task(name="talk")
    def talk(lines: int) -> None:
        for number in range(lines):
            logger.log(logging.WARNING if number % 2 else logging.INFO, "line %d\x1b[31m\nmore", number)

    @app.task(name="wait")
    def wait() -> None:
        logger.info("begins")
        GO.wait(60)
        logger.info("ends")

    yield app
    GO.set()
    app.close()
    logger.setLevel(logging.NOTSET)


def test_logs_prints_lines_with_level_logger_and_attempt(shell, app, database_url):
    run = app.registry.get("talk").enqueue(3)
    app.worker().drain()
    result = shell("logs", run.id, "--url", database_url)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].endswith("INFO    tests.cli #1: line 0\\x1b[31m")
    assert lines[1] == "    more"
    assert len(lines) == 6
    some = shell("logs", str(run.id)[:23], "--level", "warning", "--url", database_url)
    assert [line.partition(": ")[2] for line in some.stdout.splitlines()] == ["line 1\\x1b[31m", ""]
    assert len(shell("logs", run.id, "--tail", 1, "--url", database_url).stdout.splitlines()) == 2
    found = shell.json("logs", run.id, "--search", "LINE 2", "--url", database_url)
    assert [(line["seq"], line["message"], line["step"]) for line in found] == [(3, "line 2\x1b[31m\nmore", None)]


def test_logs_says_what_was_dropped_and_what_is_missing(shell, app, database_url):
    many, none = app.registry.get("talk").enqueue(100), app.registry.get("talk").enqueue(0)
    app.worker().drain()
    kept = len(many.logs())
    assert f"{100 - kept} lines dropped" in shell("logs", many.id, "--url", database_url).stderr
    assert 'no lines; Holdfast(logs="info") keeps' in shell("logs", none.id, "--url", database_url).stderr
    assert "no lines match" in shell("logs", none.id, "--level", "error", "--url", database_url).stderr
    missing = shell("logs", "0199a3f2-6c1e-7b3a-9d61-2f4f0c7f5a10", "--url", database_url)
    assert (missing.exit_code, "does not exist" in missing.stderr) == (2, True)


def test_follow_prints_new_lines_until_the_run_has_finished(shell, app, database_url):
    run = app.registry.get("wait").enqueue()
    with app.worker():
        process = shell.start("logs", run.id, "--follow", "--json", "--url", database_url)
        assert json.loads(process.stdout.readline())["message"] == "begins"
        GO.set()
        rest, errors = process.communicate(timeout=60)
        assert [json.loads(line)["message"] for line in rest.splitlines()] == ["ends"]
        assert (process.returncode, errors) == (0, "")
        wait_until(lambda: run.info().final)
