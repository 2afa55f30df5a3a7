"""Carry out the tutorial as printed: on SQLite and, with the one changed line, on PostgreSQL."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "tutorial.md").read_text()
FILE = re.compile(r'^```python title="(?P<name>[^"]+)"\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL)
CHANGED = re.compile(r'^```python notest\n(?P<line>app = Holdfast\("(?P<url>[^"]+)"\))\n```$', re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = Path(sys.executable).parent
WORKER = "holdfast worker --app parcels:app --lease 3"
ORDER = "python order.py"
RESULT = "posted a box with rope, a box with anchor, a box with lamp"


class Folder:
    """A folder with the files of the tutorial, in which its commands are executed."""

    def __init__(self, path: Path, postgres: str | None) -> None:
        self.path = path
        for match in FILE.finditer(PAGE):
            (path / match["name"]).write_text(match["code"])
        if postgres is not None:
            change_one_line(path / "parcels.py", postgres)

    def start(self, command: str) -> subprocess.Popen[str]:
        """Execute a command, which must be on the page."""
        printed = re.sub(r"\b[0-9a-f]{8}\b", "0199a3f2", command)
        assert any(f"$ {printed}\n" in block for block in CONSOLE.findall(PAGE)), f"not on the page: {printed}"
        program, *arguments = shlex.split(command)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        words = [PROGRAMS / program, *arguments]
        return subprocess.Popen(
            words, cwd=self.path, env=clean, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, command: str) -> str:
        with self.start(command) as process:
            output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return output

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[str]]:
        with self.start(WORKER) as process:
            try:
                yield process
            finally:
                process.kill()


def change_one_line(script: Path, url: str) -> None:
    changed = CHANGED.search(PAGE)
    assert changed, "the page must show the changed line"
    lines = script.read_text().splitlines()
    (at,) = [at for at, line in enumerate(lines) if line.startswith("app = ")]
    lines[at] = changed["line"].replace(changed["url"], url)
    script.write_text("\n".join(lines) + "\n")


def read_until(process: subprocess.Popen[str], last: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while last not in lines:
        line = process.stdout.readline()
        assert line, f"the process ended after {lines}"
        lines.append(line.strip())
    return lines


@pytest.fixture
def folder(database_url, tmp_path) -> Folder:
    home = tmp_path / "tutorial"
    home.mkdir()
    return Folder(home, database_url if database_url.startswith("postgresql") else None)


def test_the_order_is_completed_after_its_worker_is_killed(folder):
    id, state, result = folder.run(ORDER).split()
    assert (state, result) == ("ready", "None")
    assert folder.run(ORDER) == f"{id} ready None\n"
    assert "no worker is running" in folder.run(f"holdfast why {id[:8]} --app parcels:app")
    with folder.worker() as first:
        assert read_until(first, "packing anchor") == ["packing rope", "packing anchor"]
        first.kill()
        assert first.wait() == -signal.SIGKILL
    assert folder.run(ORDER) == f"{id} running None\n"
    with folder.worker() as second:
        assert read_until(second, "posting 3 boxes") == ["packing anchor", "packing lamp", "posting 3 boxes"]
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
    assert folder.run(ORDER) == f"{id} done {RESULT}\n"
    shown = folder.run(f"holdfast show {id[:8]} --app parcels:app")
    kinds = re.findall(r"^  \d{4}-\S+ \S+  (\w+)", shown, re.MULTILINE)
    assert kinds == ["enqueued", "started", "crashed", "started", "done"]
