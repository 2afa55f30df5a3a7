"""`holdfast worker --reload`: the worker is restarted when its code changes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli.reload import modified_at
from tests.support.processes import Processes
from tests.support.wait_until import wait_until

APP = """
from holdfast import Holdfast
app = Holdfast({url!r})

@app.task(name="say")
def say() -> str:
    return {word!r}
"""


def write(path: Path, text: str) -> None:
    """Write a file, with another time of modification than before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(max(path.stat().st_mtime_ns, before + 1),) * 2)


@pytest.fixture
def worker(tmp_path, sqlite_url):
    write(tmp_path / "shop" / "reloaded.py", APP.format(url=sqlite_url, word="one"))
    started = Processes(tmp_path)
    command = ["-m", "holdfast.cli", "worker", "--app", "reloaded:app", "--reload"]
    yield started.start(*command, cwd=tmp_path / "shop", env={"PYTHONPATH": ":".join(sys.path)})
    started.close()


def test_a_worker_is_restarted_with_new_code_also_after_a_syntax_error(worker, tmp_path, sqlite_url):
    code = tmp_path / "shop" / "reloaded.py"

    def started(times: int) -> None:
        wait_until(lambda: worker.log.count("worker started") == times, 60, lambda: f"start {times}:\n{worker.log}")

    with Holdfast(sqlite_url) as app:
        started(1)
        assert app.remote("say").enqueue().result(timeout=60) == "one"
        write(code, "def")
        worker.wait_for("reloaded.py changed: restarting the worker", 60)
        worker.wait_for("the worker ended with exit code 2; it is restarted after a change", 60)
        write(code, APP.format(url=sqlite_url, word="two"))
        started(2)
        assert app.remote("say").enqueue().result(timeout=60) == "two"
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 0, worker.log
    assert worker.log.count("worker stopped") == 2


def test_only_python_files_of_the_project_are_watched(tmp_path):
    names = ["a.py", "deep/b.py", "c.txt", ".git/d.py", "env/pyvenv.cfg", "env/lib/e.py", "__pycache__/f.py"]
    for name in names:
        write(tmp_path / name, "")
    assert sorted(modified_at(tmp_path)) == [str(tmp_path / name) for name in ("a.py", "deep/b.py")]
