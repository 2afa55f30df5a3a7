"""Rows that something else corrupted, beside healthy ones.

A corrupt run fails with a clear error or stays where it is; claims, recovery, pruning, timers, limits, schedules, lists
and pages of all others continue to work. `tests/fuzz/test_stored_rows.py` does the same for the payloads of durable
functions, machines and graphs that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Context, Holdfast, Retry
from holdfast.cli.commands import holdfast
from holdfast.control import Control
from holdfast.errors import HoldfastError, PayloadError
from holdfast.policy.schedule_timing import Timing
from holdfast.store import NewRun
from holdfast.store.schedules import DeclaredSchedule, ScheduleRules
from holdfast.web import dashboard
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until
from tests.support.web import Visitor

LEASE_S = 20
WAIT_S = 30
KINDS = [
    "job",
    "limited",
    "stranded",
    "stranded_limited",
    "isolated",
    "later",
    "overdue",
    "sleeper",
    "waiter",
    "parked",
]
"""Kinds of active runs: one of each stays healthy, the other is corrupted."""
BAD_JSON = "{oops"

RUNS: dict[str, list[tuple[str, Any]]] = {
    "args: bad JSON": [("args", BAD_JSON)],
    "args: another shape": [("args", "[[[7]]]")],
    "args: a cut payload": [("args", "~z:AAAA")],
    "options: bad JSON": [("options", BAD_JSON)],
    "limits: bad JSON": [("limits", BAD_JSON)],
    "limits: another shape": [("limits", "[1, null]")],
    "limits: places that are none": [("limits", '["x", "[]", "7", "[1, 2]"]')],
    "texts: bad JSON": [(column, BAD_JSON) for column in ("tags", "progress", "error", "cause", "result", "plan")],
    "texts: another shape": [
        ("tags", '{"a": 1}'), ("progress", "7"), ("error", "[7]"), ("cause", "[7]"),
        ("options", '{"retry": 7, "timeout": "x", "scheduled_for": []}'),
    ],
    "kind: unknown": [("kind", "banana")],
    "kind: a graph": [("kind", "graph")],
    "held: unknown": [("held", "banana")],
    "numbers: negative": [
        (column, -7)
        for column in ("attempt", "failures", "crashes", "max_crashes", "deaths", "fence", "spent", "priority", "keep")
    ],
    "times: far away": [("created_at", 2**62), ("claimed_at", -(2**62)), ("deadline", -(2**62))],
    "isolation: zero": [("isolation", 0)],
    "isolation: negative": [("isolation", -7)],
    "isolation: null": [("isolation", None)],
    "lane: missing": [("lane", 777_777)],
    "parent: missing": [("parent", "01890000-0000-7000-8000-000000000000")],
    "session: unknown": [("session", "nobody")],
}  # fmt: skip
OTHERS: dict[str, list[tuple[str, str, Any]]] = {
    "what belongs to runs": [
        ("checkpoints", "value", BAD_JSON), ("checkpoints", "kind", "banana"), ("waits", "target", BAD_JSON),
        ("history", "data", BAD_JSON),
    ],
    "worker: bad JSON": [("workers", "info", BAD_JSON), ("workers", "status", BAD_JSON), ("workers", "died_with", -7)],
    "worker: another shape": [
        ("workers", "info", '{"queues": 7, "concurrency": "x", "tasks": 3}'),
        ("workers", "status", '{"problem": 7, "loop_lag": "x", "lost_threads": [], "leftover": 7}'),
    ],
    "counter: log": [("limits", "log", BAD_JSON)],
    "counter: log of another shape": [("limits", "log", "[7, null]")],
    "counter: place": [("limits", "place", BAD_JSON)],
    "counter: place of another shape": [("limits", "place", "7")],
    "event": [("events", "payload", BAD_JSON), ("events", "target", BAD_JSON)],
    "schedule: timing": [("schedules", "timing", BAD_JSON)],
    "schedule: timing of another shape": [("schedules", "timing", '{"every": "x"}')],
    "schedule: rules": [("schedules", "rules", BAD_JSON)],
    "schedule: rules of another shape": [("schedules", "rules", "[7]")],
    "schedule: template": [("schedules", "template", BAD_JSON)],
    "schedule: template of another shape": [("schedules", "template", '{"task": 7}')],
}  # fmt: skip
CORRUPTIONS = {name: [("runs", *change) for change in changes] for name, changes in RUNS.items()} | OTHERS

PAGES = [
    "/", "/runs", "/runs?tag=t", "/runs?error=x", "/runs/{id}", "/workers", "/limits", "/schedules", "/gates",
    "/api/v1/runs", "/api/v1/runs?tag=t", "/api/v1/runs?error=x", "/api/v1/runs?state=ready", "/api/v1/runs/{id}",
    "/api/v1/runs/{id}/why", "/api/v1/counts", "/api/v1/stats", "/api/v1/queues", "/api/v1/workers", "/api/v1/limits",
    "/api/v1/schedules", "/api/v1/schedules/sound", "/api/v1/gates", "/metrics",
]  # fmt: skip
COMMANDS = [
    "runs", "runs --tag t", "show {id}", "why {id}", "doctor", "workers", "stats", "limits", "queues", "schedules",
]  # fmt: skip


class Dataset:
    """Two runs of each kind, of which the first will be corrupted; a dead session, counters, events, schedules."""

    def __init__(self, url: str) -> None:
        self.app = app = Holdfast(url)
        app.limit("each", concurrency=2, rate="1000/s", by="mark")

        @app.task(name="job", retry=Retry(max_attempts=1))
        async def job(mark: str) -> str:
            return mark

        @app.task(name="limited", limits=["each"], retry=Retry(max_attempts=1))
        async def limited(mark: str) -> str:
            return mark

        @app.task(name="sleeper")
        async def sleeper(ctx: Context, mark: str) -> str:
            await ctx.step(str, mark)
            await ctx.sleep(3600)
            return mark

        @app.task(name="waiter")
        async def waiter(ctx: Context, mark: str) -> str:
            return f"{mark} {await ctx.wait_for('go')}"

        app.schedule("own", job, every=3600, args=("own",))
        self.tasks = {"job": job, "limited": limited, "sleeper": sleeper, "waiter": waiter}
        self.ended = {mark: self._ended(mark) for mark in ("broken", "sound")}
        for task in (sleeper, waiter):
            for mark in ("broken", "sound"):
                setattr(self, f"{task.name}_{mark}", task.options(tags=["t"]).enqueue(mark))
        with app.worker(lease=LEASE_S):
            wait_until(lambda: fetch(app, "select count(*) from {}runs where state = 'waiting'")[0][0] == 4, WAIT_S)
        self.runs = {(kind, mark): self._start(kind, mark) for mark in ("broken", "sound") for kind in KINDS}
        self._create_dead_session()
        self._prepare()

    def _ended(self, mark: str) -> dict[str, Any]:
        """Create a finished run to keep and one to prune."""
        job = self.tasks["job"]
        ended = {"kept": job.options(tags=["t"]).enqueue(mark), "old": job.enqueue(mark)}
        self.app.worker(lease=LEASE_S).drain(timeout=WAIT_S)
        return ended

    def _start(self, kind: str, mark: str) -> Any:
        if kind in ("sleeper", "waiter"):
            return getattr(self, f"{kind}_{mark}")
        task = self.tasks["limited" if kind in ("limited", "stranded_limited", "parked") else "job"]
        task = task.options(
            tags=["t"], delay=3600 if kind == "later" else None, deadline=3600 if kind == "overdue" else None
        )
        return task.enqueue(mark)

    def _create_dead_session(self) -> None:
        """Create a session of a dead process with some of the runs."""
        store = self.app.store
        store.sessions.open("dead", "dead", 3_600_000_000, '{"queues": null}')
        stranded = self.ids("stranded", "stranded_limited")
        self.execute(
            f"update {{}}runs set state = 'running', session = 'dead', fence = 1, attempt = 1 where id in ({stranded})"
        )

    def _prepare(self) -> None:
        """Create schedules, isolated runs and parked runs."""
        timing, rules = Timing(every=60_000_000), ScheduleRules("latest", "skip", 0)
        runs = {
            mark: NewRun("", "default", "job", f'{{"mark":"{mark}"}}', 86_400_000_000) for mark in ("broken", "sound")
        }
        self.app.store.schedules.declare(
            "x", [DeclaredSchedule(mark, timing, rules, run) for mark, run in runs.items()]
        )
        self.execute(f"update {{}}runs set held = 'isolated', isolation = 2 where id in ({self.ids('isolated')})")
        for mark in ("broken", "sound"):
            place = f'["each","\\"{mark}\\""]'
            self.execute(
                "insert into {}limits (place, name, used, log, look_at, touched_at)"
                f" values ('{place}', 'each', 1, '[]', 1, 1) on conflict do nothing"
            )
            self.execute(
                f"update {{}}runs set held = 'full', parked_on = '{place}' where id = '{self.runs['parked', mark].id}'"
            )

    def ids(self, *kinds: str, marks: tuple[str, ...] = ("broken", "sound")) -> str:
        return ", ".join(f"'{self.runs[kind, mark].id}'" for kind in kinds for mark in marks)

    def execute(self, sql: str) -> None:
        fetch(self.app, sql)

    def corrupt(self, table: str, column: str, value: Any) -> bool:
        """Corrupt a row and return whether the database accepted it."""
        broken = self.ids(*KINDS, marks=("broken",)) + f", '{self.ended['broken']['kept'].id}'"
        whose = {
            "runs": f"id in ({broken})",
            "workers": "session = 'dead'",
            "limits": "place like '%broken%'",
            "events": "true",
            "schedules": "name = 'broken'",
        }
        value = "null" if value is None else repr(value)
        return self.executed(
            f"update {{}}{table} set {column} = {value} where {whose.get(table, f'run in ({broken})')}"
        )

    def executed(self, sql: str) -> bool:
        try:
            self.execute(sql)
        except HoldfastError:
            return False
        return True

    def make_all_due(self) -> None:
        """Make everything due and expire the dead session."""
        sound = self.ids(*KINDS, marks=("sound",))
        both = self.ids(*KINDS)
        self.execute("update {}workers set lease_until = 1 where session = 'dead'")
        self.execute(f"update {{}}runs set due_at = 1 where state = 'scheduled' and id in ({both})")
        self.execute("update {}waits set due_at = 1 where due_at is not null")
        self.execute(f"update {{}}runs set deadline = 1 where deadline is not null and id in ({sound})")
        old = ", ".join(f"'{ended['old'].id}'" for ended in self.ended.values())
        self.execute(f"update {{}}runs set expires_at = 1 where id in ({old})")
        self.execute("update {}schedules set next_at = 1000000")
        self.app.emit("go", "gone")

    def slot_created(self) -> bool:
        return bool(fetch(self.app, "select 1 from {}slots where schedule = 'sound'"))

    def check_pages(self) -> None:
        """Check that every list and page responds, except those about a corrupt run."""
        site = dashboard(self.app, unlocked=True)
        visitor = Visitor(site)
        sound = self.ended["sound"]["kept"].id
        try:
            statuses = {path: visitor.get(path.format(id=sound)).status for path in PAGES}
            assert {path: status for path, status in statuses.items() if status != 200} == {}
            listed = visitor.get("/api/v1/runs?limit=100").json["runs"]
            assert {str(run.id) for (_, mark), run in self.runs.items() if mark == "sound"} < {
                run["id"] for run in listed
            }
        finally:
            site.close()

    def check_commands(self) -> None:
        """Check that every command responds."""
        for command in COMMANDS:
            words = ["--url", self.app.url, *command.format(id=self.ended["sound"]["kept"].id).split()]
            result = CliRunner().invoke(holdfast, words)
            assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
            assert result.exit_code in (0, 1), (command, result.output)
            assert "rror:" not in result.stderr, (command, result.output)

    def check_broken_runs(self) -> None:
        """Check that pages about a corrupt run respond or explain the problem."""
        site = dashboard(self.app, unlocked=True)
        visitor = Visitor(site)
        broken = [run for (_, mark), run in self.runs.items() if mark == "broken"] + [self.ended["broken"]["kept"]]
        try:
            for run in broken:
                for path in ("/runs/{id}", "/api/v1/runs/{id}", "/api/v1/runs/{id}/why", "/api/v1/runs/{id}/steps"):
                    answer = visitor.get(path.format(id=run.id))
                    assert answer.status < 500, (path, run)
                for command in ("show {id}", "why {id}"):
                    result = CliRunner().invoke(holdfast, ["--url", self.app.url, *command.format(id=run.id).split()])
                    assert result.exception is None or isinstance(result.exception, SystemExit), (
                        command,
                        result.exception,
                    )
        finally:
            site.close()


@pytest.fixture
def dataset(database_url: str) -> Iterator[Dataset]:
    dataset = Dataset(database_url)
    yield dataset
    dataset.app.close()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corrupt_rows_affect_no_healthy_runs_and_pages(dataset, name):
    taken = [dataset.corrupt(*change) for change in CORRUPTIONS[name]]
    assert all(taken) == (name != "kind: unknown"), "the schema rejects it"
    dataset.check_pages()
    dataset.check_broken_runs()
    dataset.make_all_due()
    with dataset.app.worker(lease=LEASE_S, concurrency=1):
        for kind in KINDS:
            run = dataset.runs[kind, "sound"]
            wait_until(lambda run=run: run.info().finished_at, WAIT_S, kind)
            assert run.info().error is None or kind == "overdue"
        wait_until(dataset.slot_created, WAIT_S, "the slot of a schedule")
    dataset.app.store.retention.prune()
    assert not fetch(dataset.app, f"select 1 from {{}}runs where id = '{dataset.ended['sound']['old'].id}'")
    dataset.check_commands()


@pytest.mark.parametrize("limits", [BAD_JSON, '{"a": 1}', "[1, null]"])
def test_a_run_with_unreadable_limits_fails_with_an_explanation(dataset, limits):
    """It must neither be claimed with wrong permits nor be skipped forever."""
    dataset.corrupt("runs", "limits", limits)
    dataset.make_all_due()
    with dataset.app.worker(lease=LEASE_S, concurrency=1):
        for kind in ("job", "limited", "stranded", "stranded_limited", "isolated"):
            run = dataset.runs[kind, "broken"]
            wait_until(lambda run=run: run.info().finished_at, WAIT_S, kind)
            assert run.info().state == "failed", kind
            assert "stored limits are corrupt" in run.info().error.message


def test_a_run_in_a_missing_lane_is_reported(dataset):
    """Its queue and task are unknown."""
    dataset.corrupt("runs", "lane", 777_777)
    control = Control(dataset.app.store, dataset.app.registry)
    (finding,) = [each for each in control.doctor.examine().findings if each.code == "missing_lane"]
    assert finding.data == {"lane": 777_777, "runs": len(KINDS)}


def test_a_run_held_for_an_unknown_reason_is_explained(dataset):
    dataset.corrupt("runs", "held", "banana")
    control = Control(dataset.app.store, dataset.app.registry)
    reasons = control.whys.why(dataset.runs["job", "broken"].id).reasons
    assert [(reason.code, reason.data) for reason in reasons] == [("held", {"held": "banana"})]


def test_an_unreadable_result_hides_no_other_run(dataset):
    dataset.corrupt("runs", "result", BAD_JSON)
    broken, sound = (dataset.ended[mark]["kept"] for mark in ("broken", "sound"))
    listed = {info.id: info.result for info in dataset.app.runs()}
    assert (listed[broken.id], listed[sound.id]) == (None, "sound")
    with pytest.raises(PayloadError):
        broken.result(timeout=1)
