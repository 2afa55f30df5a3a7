"""Corrupt rows: only their own run may fail, with an error that says so.

Nothing in them is executed, and the worker finishes every other run.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from holdfast import Context, Done, Graph, Holdfast, State
from holdfast.control import Control
from holdfast.database.statements import Statement
from holdfast.errors import HoldfastError
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

JUNK = ["", "{", "null", "[[[[", '{"__class__": "os.system"}', "'; drop table runs; --", "\U0001f4a5", "9" * 20]
PLACES = [
    ("runs", "args"), ("runs", "options"), ("runs", "tags"), ("runs", "progress"), ("runs", "cause"), ("runs", "held"),
    ("runs", "spawn_key"), ("checkpoints", "value"), ("checkpoints", "key"), ("checkpoints", "kind"),
    ("waits", "target"), ("events", "payload"), ("messages", "payload"), ("messages", "topic"), ("history", "data"),
    ("history", "kind"), ("keys", "digest"),
]  # fmt: skip


class Only(State):
    """A state machine with one state."""

    mark: str

    async def run(self, ctx: Context) -> Done[str]:
        await ctx.step(str, "x")
        await ctx.wait_for("go")
        return Done(self.mark)


class Scene:
    """Unfinished runs of every kind, two of each; one of each pair gets corrupted."""

    def __init__(self, url: str) -> None:
        self.app = app = Holdfast(url)

        @app.task(name="job", queue="later")
        async def job(mark: str) -> str:
            return mark

        @app.task(name="function")
        async def function(ctx: Context, mark: str) -> str:
            await ctx.step(str, "x")
            await ctx.call(small, mark)
            note = await ctx.receive("note")
            return f"{note} {await ctx.wait_for('go')}"

        @app.task(name="small")
        async def small(mark: str) -> str:
            return mark

        machine = app.machine("machine", Only)
        self.broken, self.sound = [self._start(job, function, machine, mark) for mark in "ab"]
        with app.worker(queues=["default"], lease=30):
            wait_until(lambda: fetch(app, "select count(*) from {}runs where state = 'waiting'")[0][0] == 8)

    def _start(self, job: Any, function: Any, machine: Any, mark: str) -> dict[str, Any]:
        graph = Graph("graph", key=mark)
        graph.add(job, mark, name="node", after=[graph.gate("ok")])
        runs = {
            "job": job.options(tags=["t"]).enqueue(mark),
            "function": function.options(key=mark).enqueue(mark),
            "machine": machine.enqueue(Only(mark=mark)),
            "graph": self.app.submit(graph),
        }
        runs["function"].send("note", "sent")
        return runs

    def change(self, table: str, column: str, junk: str) -> int:
        """Change what belongs to the broken ones, and rows of nobody's; how many."""
        ids = ", ".join(f"'{run.id}'" for run in self.broken.values())
        whose = {"runs": f"id in ({ids})", "keys": f"run in ({ids})", "events": "true"}
        prefix = "holdfast_" if self.app.url.startswith("sqlite") else "holdfast."
        text = junk.replace("'", "''")
        where = whose.get(table, f"run in ({ids})")
        sql = f"update {prefix}{table} set {column} = '{text}' where {where}"
        line = self.app.store.database.connection("client")
        try:
            line.run(lambda connection: connection.execute(Statement("test", sql, ()), {}))
        except HoldfastError:
            return 0  # the schema itself rejects it
        return fetch(self.app, f"select count(*) from {{}}{table} where {column} = '{text}'")[0][0]

    def go_on(self) -> None:
        """Give all that is waited for, to whomever can still take it."""
        self.app.emit("go", "gone")
        for runs in (self.broken, self.sound):
            with suppress(*([HoldfastError] if runs is self.broken else [])):
                runs["graph"].gate("ok").complete("yes")

    def look(self) -> None:
        """Every way to look at what is broken answers, or says in our words why it can't."""
        control = Control(self.app.store, self.app.registry)
        assert {run.id for run in self.sound.values()} < {info.id for info in self.app.runs()}
        for run in self.broken.values():
            looks = (control.runs.details, control.runs.steps, control.runs.waits, control.whys.why)
            for look in (run.info, run.history, *(partial(look, run.id) for look in looks)):
                with suppress(HoldfastError):
                    look()


@pytest.fixture
def scene(database_url):
    scene = Scene(database_url)
    yield scene
    scene.app.close()


@pytest.mark.parametrize(("table", "column"), PLACES, ids=[".".join(place) for place in PLACES])
def test_a_corrupt_row_affects_only_its_own_run(scene, table, column):
    last = PLACES.index((table, column)) % len(JUNK)  # each column keeps a different junk value
    changed = 0
    for junk in (*JUNK[last + 1 :], *JUNK[: last + 1]):
        changed += scene.change(table, column, junk)
        scene.look()
    assert changed, "nothing could be changed: then there is nothing to see"
    with scene.app.worker(lease=30):
        scene.go_on()
        assert scene.sound["job"].result(timeout=60) == "b"
        assert scene.sound["function"].result(timeout=60) == "sent gone"
        assert scene.sound["machine"].result(timeout=60) == "b"
        assert scene.sound["graph"].result(timeout=60)["node"] == "b"
        assert scene.app.registry.get("job").enqueue("after").result(timeout=60) == "after"
    scene.look()
