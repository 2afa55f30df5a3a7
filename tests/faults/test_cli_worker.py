"""`holdfast worker` as a process: app lookup, error messages and exit."""

from __future__ import annotations

import signal

import pytest

from tests.support.processes import run_python
from tests.support.wait_until import wait_until

TASKS = """
from holdfast import Holdfast

app = Holdfast({url!r})
not_an_app = 3


class inner:
    app = app


@app.task
def double(n: int) -> int:
    return 2 * n
"""


@pytest.fixture
def project(tmp_path, database_url):
    """A folder with an app in a module."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "shop.py").write_text(TASKS.format(url=database_url))
    return folder


def run_cli(folder, *arguments, env=()):
    """Run a command in a folder, with no other variables in its environment."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **dict(env)}
    return run_python("-m", "holdfast.cli", *arguments, cwd=folder, env=environment)


@pytest.mark.parametrize(
    "arguments", [("worker", "--help"), ("worker", "-h"), ("--help",), ("--version",)], ids=" ".join
)
def test_help_is_given_without_an_app(tmp_path, arguments):
    shown = run_cli(tmp_path, *arguments)
    assert (shown.returncode, shown.stderr) == (0, "")
    if arguments[0] == "worker":
        for option in ("--app", "--queues", "--concurrency", "--lease", "--grace"):
            assert option in shown.stdout


BROKEN = {
    "no app": [],
    "only a module": ["--app", "shop"],
    "no attribute": ["--app", "shop:"],
    "no module": ["--app", ":app"],
    "nothing": ["--app", ":"],
    "a file's name": ["--app", "shop.py:app"],
    "a path": ["--app", "./shop:app"],
    "a relative module": ["--app", ".shop:app"],
    "dots": ["--app", "shop..x:app"],
    "a module that isn't there": ["--app", "nowhere.tasks:app"],
    "an attribute that isn't there": ["--app", "shop:apps"],
    "something else": ["--app", "shop:not_an_app"],
    "a wrong number": ["--app", "shop:app", "--concurrency", "many"],
    "no slots": ["--app", "shop:app", "--concurrency", "0"],
    "a short lease": ["--app", "shop:app", "--lease", "0.01"],
    "no queues": ["--app", "shop:app", "--queues", ","],
    "an unknown option": ["--app", "shop:app", "--fast"],
}


@pytest.mark.parametrize("arguments", BROKEN.values(), ids=BROKEN.keys())
def test_invalid_usage_is_reported_in_one_line(tmp_path, arguments):
    (tmp_path / "shop.py").write_text(TASKS.format(url="sqlite:///x.db"))
    ended = run_cli(tmp_path, "worker", *arguments)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert ended.stdout == ""
    assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://nobody@127.0.0.1:1/nothing",
        "postgresql://nobody@no-such-host.invalid/nothing",
        "sqlite:////no/such/folder/x.db",
        "mysql://x/y",
    ],
)
def test_a_missing_database_is_reported_in_one_line(tmp_path, url):
    (tmp_path / "shop.py").write_text(TASKS.format(url=url))
    ended = run_cli(tmp_path, "worker", "--app", "shop:app", "--fail-fast")
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


@pytest.mark.parametrize("text", ["[tool.holdfast\n", "[tool]\nholdfast = 3\n", "[tool.holdfast]\napp = 3\n", "\xff"])
def test_an_invalid_pyproject_is_reported_in_one_line(tmp_path, text):
    (tmp_path / "pyproject.toml").write_bytes(text.encode("latin-1"))
    ended = run_cli(tmp_path, "worker")
    assert ended.returncode == 2, ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


@pytest.mark.variants
@pytest.mark.parametrize(
    "how", ["option", "option before the verb", "environment", "pyproject", "attribute of a class"]
)
def test_the_app_is_found_and_runs_until_it_is_stopped(project, processes, app, how):
    arguments, env = ["worker"], {}
    if how == "option":
        arguments = ["worker", "--app", "shop:app"]
    elif how == "option before the verb":
        arguments = ["--app", "shop:app", "worker"]
    elif how == "attribute of a class":
        arguments = ["worker", "--app", "shop:inner.app"]
    elif how == "environment":
        env = {"HOLDFAST_APP": "shop:app"}
    else:
        (project / "pyproject.toml").write_text('[tool.holdfast]\napp = "shop:app"\n')
    worker = processes.start("-m", "holdfast.cli", *arguments, "--lease", "5", cwd=project, env=env)
    worker.wait_for("worker started", timeout=60)
    assert app.remote("shop.double").enqueue(21).result(timeout=30) == 42
    worker.signal(signal.SIGINT if how == "option" else signal.SIGTERM)
    assert worker.wait() == 0
    assert "Traceback" not in worker.log
    wait_until(lambda: app.store.sessions.list_live() == [])


def test_the_options_reach_the_worker(project, processes, app):
    options = ["--queues", "a, b", "--concurrency", "3", "--lease", "7s", "--grace", "0.002m", "--verbose"]
    worker = processes.start("-m", "holdfast.cli", "worker", "--app", "shop:app", *options, cwd=project)
    worker.wait_for("worker started", timeout=60)
    left = app.remote("shop.double").enqueue(1)
    assert app.remote("shop.double").options(queue="b").enqueue(2).result(timeout=30) == 4
    [(_, _, _, _, info)] = app.store.sessions.list_live()
    assert '"concurrency": 3' in info
    assert '["a", "b"]' in info
    assert left.info().state == "ready"
    worker.wait_for("task=shop.double")  # --verbose tells of every run
