"""A database in which every payload is at the limit but compresses to a few kilobytes, and the memory of requests.

`python -m tests.support.large_payloads URL` fills the database at the URL, which is empty, sends every kind of request
to a dashboard in this process, and prints one line of JSON per request: its name, its status, and its peak memory above
idle in bytes.
"""

from __future__ import annotations

import base64
import ctypes
import gc
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import psycopg

from holdfast import Context, Graph, Holdfast, Retry
from holdfast.control import Control
from holdfast.web import dashboard
from holdfast.web.api.operation import PREFIX
from holdfast.web.pages.routes import PAGES
from holdfast.web.site import OPERATIONS
from tests.support.web import Visitor

RUNS = 10_000
PARTS = 300
"""Steps, history entries, nodes and events."""
LIMIT = 2 * 1024 * 1024
NESTED = '{"":' * 198 + "0" + "}" * 198
"""JSON whose objects take the most memory."""
LAUNCHER = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
sys.stderr.write(f"\\n{usage.ru_maxrss} {os.waitstatus_to_exitcode(status)}")
"""
_libc = ctypes.CDLL("libc.so.6")


def large_json() -> str:
    """Return a JSON object of almost 2 MB."""
    return '{"text":[' + ",".join([NESTED] * (LIMIT // (len(NESTED) + 1) - 1)) + "]}"


def packed(text: str) -> str:
    """Return the stored form of a payload, compressed as well as possible."""
    return "~z:" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def execute(url: str, statement: str, values: dict[str, Any]) -> None:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(30_000)
        connection.execute(statement, values)
        connection.close()
        return
    text = statement.replace("holdfast_", "holdfast.")
    for name in values:
        text = text.replace(f":{name}", f"%({name})s")
    with psycopg.connect(url) as connection:
        connection.execute(text.encode(), values)


class LargeDatabase:
    """An app whose database is full of large payloads."""

    def __init__(self, url: str) -> None:
        self.app = app = Holdfast(url)
        self.url = url

        @app.task(name="plain")
        def plain(text: Any) -> Any:
            return text

        @app.task(name="steps", retry=Retry(max_attempts=1))
        async def steps(ctx: Context, text: Any) -> Any:
            async def step(n: int) -> int:
                return n

            for n in range(PARTS):
                await ctx.step(step, n, name="step")
            if text == "fail":
                raise ValueError(text)
            children = [await ctx.spawn(plain, n) for n in range(3)]
            for child in children:
                await ctx.join(child)
            await ctx.receive("topic", type=int)

        self.plain, self.steps = plain, steps
        self.control = Control(app.store, app.registry)
        self.ids: dict[str, Any] = {}

    def fill(self) -> None:
        app = self.app
        app.schedule("hourly", self.plain.request(1), every=3600)
        graph = Graph("graph")
        nodes = [graph.add(self.plain, n, name=f"node {n}") for n in range(PARTS)]
        gate = graph.gate("gate", after=nodes[:20])
        graph.add(self.plain, 1, after=[gate], name="last")
        ended = Graph("ended")
        for n in range(PARTS):
            ended.add(self.plain, n, name=f"node {n}")
        self.ids = {
            "waiting": self.steps.enqueue("wait").id,
            "failed": self.steps.enqueue("fail").id,
            "graph": app.submit(graph).id,
            "ended": app.submit(ended).id,
            "done": self.plain.enqueue(1).id,
        }
        app.worker(concurrency=4).drain()
        for n in range(30):
            app.get_run(self.ids["waiting"]).send("topic", f"not a number {n}")
        for n in range(PARTS):
            app.emit(f"event {n}", n)
        app.worker(concurrency=4).drain()
        self.ids["gate"] = self.control.graphs.node(self.ids["graph"], "gate")
        app.enqueue_many([self.plain.request(n) for n in range(RUNS)])
        self._enlarge()

    def _enlarge(self) -> None:
        value = {"value": packed(large_json())}
        execute(self.url, "update holdfast_runs set args = :value", value)
        execute(self.url, "update holdfast_runs set result = :value where state = 'done'", value)
        done = "state = 'done', result = :value, started_at = created_at, finished_at = created_at + 1, held = null"
        execute(self.url, f"update holdfast_runs set {done} where state = 'ready'", value)
        execute(self.url, "update holdfast_checkpoints set value = :value where kind = 'step'", value)
        execute(self.url, "update holdfast_events set payload = :value where emitted_at is not null", value)
        execute(self.url, "update holdfast_messages set payload = :value", value)
        failed_try = {
            "step": "step-1:0123456789abcdef#1", "try": 1, "tries": 3, "took": 1, "retry_in": 1,
            "args": value["value"], "error": {"type": "ValueError", "message": "x" * 4000},
        }  # fmt: skip
        columns = "insert into holdfast_history (run, n, at, kind, attempt, data)"
        statement = f"{columns} values (:run, :n, :at, 'step_retrying', 1, :data)"
        for n in range(PARTS):
            row = {
                "run": str(self.ids["waiting"]),
                "n": 1000 + n,
                "at": 1700000000000000,
                "data": json.dumps(failed_try),
            }
            execute(self.url, statement, row)


def requests(ids: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the method and path of every request that reads, once for each run it may be about."""
    found = [
        ("GET", path)
        for path in ("/runs?limit=200", "/metrics", f"{PREFIX}/runs?limit=200", f"{PREFIX}/events?limit=200")
    ]
    reading = [PREFIX + each.path for each in OPERATIONS if each.method == "GET"] + [page.path for page in PAGES]
    for path in reading:
        for run in ids.values() if "{id}" in path else [None]:
            target = path.replace("{id}", str(run)).replace("{gate:path}", "gate").replace("{gate}", "gate")
            found.append(("GET", target.replace("{schedule:path}", "hourly").replace("{schedule}", "hourly")))
    found += [("GET", f"{PREFIX}/runs/{ids['waiting']}/{part}?limit=200&after=50") for part in ("steps", "history")]
    found += [("GET", f"/bulk?verb=retry&{quote('state', safe='')}=failed"), ("GET", f"/find?q={ids['done']}")]
    return found


def peak_above(idle: int) -> int:
    """Return the peak memory of this process since the last reset, above idle."""
    return max(_status("VmHWM") - idle, 0)


def reset_peak() -> None:
    gc.collect()
    _libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def resident() -> int:
    return _status("VmRSS")


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def commands(ids: dict[str, Any]) -> list[list[str]]:
    shown = [["show", str(id), *more] for id in ids.values() for more in ([], ["--json"])]
    return [["runs", "--limit", "1000"], ["runs", "--limit", "1000", "--json"], ["events", "--json"], *shown]


def command_peak(url: str, arguments: list[str]) -> tuple[int, int]:
    """Run a command; return its peak memory and its exit code.

    A small process starts it: the peak of a child includes the memory of the process that forked it.
    """
    command = [sys.executable, "-S", "-c", LAUNCHER, sys.executable, "-m", "holdfast.cli", "--url", url, *arguments]
    peak, code = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()[-2:]
    return int(peak) * 1024, int(code)


def report(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(url: str) -> None:
    database = LargeDatabase(url)
    database.fill()
    site = dashboard(database.app, token="t" * 40)
    visitor = Visitor(site, "t" * 40)
    visitor.get("/")  # imports, connections
    reset_peak()
    idle = resident()
    for method, path in requests(database.ids):
        reset_peak()
        answer = visitor.ask(method, path)
        size = len(answer.body)
        line = {"request": f"{method} {path}", "status": answer.status, "bytes": size, "peak": peak_above(idle)}
        report(line)
    for path, body in bodies(database.ids):
        reset_peak()
        answer = visitor.ask("POST", path, body, {"content-type": "application/json"})
        report({"request": f"POST {path}", "status": answer.status, "peak": peak_above(idle)})
    site.close()
    database.app.close()
    for arguments in commands(database.ids):
        peak, code = command_peak(url, arguments)
        idle = command_peak(url, ["queues"])[0]
        report({"request": f"holdfast {' '.join(arguments)}", "status": 500 if code else 200, "peak": peak - idle})


def bodies(ids: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield requests that send as much as they may: plain text, records, and objects that take the most memory."""
    record = '{"id":1,"name":"rope","price":1.5}'
    texts = (
        lambda: json.dumps("x" * (LIMIT - 100)),
        lambda: "[" + ",".join([record] * (LIMIT // (len(record) + 1) - 100)) + "]",
        lambda: "[" + ",".join(["[]"] * (LIMIT // 3 - 100)) + "]",
        large_json,
    )
    for make in texts:
        text = make()
        yield f"{PREFIX}/runs", f'{{"task":"plain","args":[{text}]}}'.encode()
        yield f"{PREFIX}/events", f'{{"name":"new","payload":{text}}}'.encode()
        message = f'{{"topic":"other","payload":{text}}}'
        yield f"{PREFIX}/runs/{ids['waiting']}/messages", message.encode()


if __name__ == "__main__":
    main(sys.argv[1])
