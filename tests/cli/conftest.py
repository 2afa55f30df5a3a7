"""Run the CLI in a directory of its own without HOLDFAST_* variables, in this process or as a process."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.commands import holdfast
from holdfast.store import AttemptEnd, Claim
from tests.support.processes import run_python

SHOP = """
import os
from holdfast import Holdfast, Retry

app = Holdfast(os.environ.get("SHOP_URL"))

@app.task
def add(a: int, b: int = 10) -> int:
    return a + b

@app.task(queue="mail", timeout=90, retry=Retry(max_attempts=5))
async def send(to: str, subject: str = "hello") -> str:
    return f"sent {subject} to {to}"

@app.task(name="boom", retry=Retry(max_attempts=1))
def boom(text: str = "bad") -> None:
    raise ValueError(text)
"""


VOYAGE = """
import os
from holdfast import Context, Holdfast, Retry

app = Holdfast(os.environ.get("SHOP_URL"))

async def load(what: str) -> dict:
    return {"loaded": what, "crates": list(range(100))}

async def unload(loaded: dict) -> None:
    pass

def sink(where: str) -> None:
    raise ValueError(f"sunk off {where}, with all hands, in a storm that nobody had foreseen when the voyage began")

@app.task(retry=Retry(max_attempts=1))
def row(n: int) -> int:
    if n == 1:
        raise RuntimeError("a broken oar")
    return n

@app.task(retry=Retry(max_attempts=1))
async def sail(ctx: Context, to: str, storm: bool = False) -> str:
    await ctx.step(load, EVIL, undo=unload)
    await ctx.progress(1, 4, "loaded")
    await ctx.map(row, [0, 1, 2], errors="return")
    await ctx.sleep(0, name="tide")
    if storm:
        await ctx.step(sink, to)
    order = await ctx.receive("orders", timeout=3600)
    return await ctx.wait_for(f"lighthouse-{to}", type=str) + str(order)

EVIL = {evil!r}
"""


class Shell:
    """A directory in which commands run."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder = folder
        self.url = url

    def __call__(self, *words: object, stdin: str | None = None) -> Result:
        """In this process. stdout and stderr of the result are apart."""
        return CliRunner().invoke(holdfast, [str(word) for word in words], input=stdin)

    def json(self, *words: object) -> Any:
        result = self(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def start(self, *words: object, **settings: Any) -> subprocess.Popen[str]:
        """Run as a separate process."""
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": self.folder, **settings}
        return subprocess.Popen([sys.executable, "-m", "holdfast.cli", *map(str, words)], **settings)

    def run(self, *words: object, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
        return run_python("-m", "holdfast.cli", *words, cwd=self.folder, env=env)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """An empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("HOLDFAST_URL", "HOLDFAST_APP", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, "")  # so that what a command sets is undone too
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return Shell(folder, None)


@pytest.fixture
def shop(shell: Shell) -> Iterator[str]:
    """A module with an app, as --app takes it; its database is $SHOP_URL, else $HOLDFAST_URL, else the default."""
    name = f"shop_{uuid4().hex}"
    (shell.folder / f"{name}.py").write_text(SHOP)
    yield f"{name}:app"
    sys.modules.pop(name, None)


class Busy:
    """A database with runs in many states, and their ids."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = app = Holdfast(url)
        self.session = "host:1:abc"
        task = app.remote("shop.add")
        app.store.prepare()
        app.store.sessions.open(self.session, "host:1", 60_000_000, '{"queues": ["default"], "concurrency": 5}')
        self.done = self._end(
            task.options(tenant="acme", tags=["nightly"], key="order-1", metadata={"order": 1, "shop": "oslo"})
            .enqueue(1, 2)
            .id,
            "done",
            result="3",
        )
        failing = app.remote("shop.boom").enqueue("x").id
        error = json.dumps(
            {"code": "error", "type": "ValueError", "message": EVIL, "traceback": f"Traceback\n  {EVIL}"}
        )
        self.failed = self._end(failing, "failed", error=error)
        self.running = task.enqueue(1).id
        self._claim(self.running)
        self.ready = task.enqueue(EVIL).id
        self.scheduled = app.remote("shop.send", queue="mail").options(delay=3600).enqueue("ada").id
        app.store.queues.pause(["mail"])

    def _claim(self, id: UUID) -> Claim:
        lanes = list(self.app.store.lanes.refresh())
        (claim,) = self.app.store.claims.claim(self.session, lanes, 1)
        assert claim.id == str(id)
        return claim

    def _end(self, id: UUID, kind: Any, **more: Any) -> UUID:
        claim = self._claim(id)
        self.app.store.attempts.end(self.session, [AttemptEnd(claim.id, claim.seq, claim.fence, kind, kind, **more)])
        return id

    def state(self, id: UUID) -> str:
        return self.app.get_run(id).info().state


EVIL = "\x1b[2J\x1b]0;owned\x07[bold red]markup[/]\u202e\x9b31m\r\nline two"


@pytest.fixture
def busy(shell: Shell, database_url: str) -> Iterator[Busy]:
    """A busy database, once per database."""
    busy = Busy(database_url)
    yield busy
    busy.app.close()


@pytest.fixture
def empty(shell: Shell, database_url: str) -> str:
    """The URL of a database with our tables and nothing in them, once per database."""
    with Holdfast(database_url) as app:
        app.store.prepare()
    return database_url


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}


class Voyages:
    """Unfinished durable functions, and the ids of their runs."""

    def __init__(self, url: str, module: str) -> None:
        self.url = url
        self.target = f"{module}:app"
        self.app: Holdfast = importlib.import_module(module).app
        sail = self.app.registry.get(f"{module}.sail")
        self.task = sail.name
        self.waiting = sail.enqueue("Brest").id
        self.failed = sail.enqueue("Scilly", storm=True).id
        self.undoing = sail.enqueue("Lundy").id
        self.work()
        self.app.get_run(self.undoing).cancel("recalled")

    def work(self) -> None:
        self.app.worker().drain(timeout=60)

    def state(self, id: UUID) -> str:
        return self.app.get_run(id).info().state


@pytest.fixture
def voyages(shell: Shell, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Voyages]:
    """A module with durable functions, some unfinished, once per database."""
    name = f"voyage_{uuid4().hex}"
    (shell.folder / f"{name}.py").write_text(VOYAGE.replace("{evil!r}", repr(EVIL)))
    monkeypatch.setenv("SHOP_URL", database_url)
    monkeypatch.syspath_prepend(str(shell.folder))
    voyages = Voyages(database_url, name)
    yield voyages
    voyages.app.close()
    sys.modules.pop(name, None)
