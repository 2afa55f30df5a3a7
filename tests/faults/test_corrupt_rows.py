"""Rows that another program or a failure corrupted, beside healthy ones: every column, with every kind of bad value.

A corrupt run fails with a clear error, is quarantined, or stays where it is. Claims, recovery, pruning, timers, limits,
schedules, statistics, lists, pages and commands of all others go on. `tests/fuzz/test_stored_rows.py` changes what
durable functions, machines and graphs have stored while they run.
"""

from __future__ import annotations

import base64
import resource
import shutil
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner

from holdfast import Context, Holdfast
from holdfast.cli.commands import holdfast
from holdfast.control import Control
from holdfast.errors import PayloadError
from holdfast.testing.server import DatabaseFactory, database_of
from holdfast.web import dashboard
from tests.support.corruption import LEASE_S, Dataset, Runs, build_dataset
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until
from tests.support.web import Visitor

WAIT_S = 10
BAD_JSON = "'{oops'"
NOT_UTF8 = "cast(x'ff41' as text)"
BLOB = "x'ff00fe'"
MIN_64, MAX_64 = str(-(2**63)), str(2**63 - 1)
NIL = "'00000000-0000-0000-0000-000000000000'"

INTEGERS = {"smallint": (-(2**15), 2**15 - 1), "int": (-(2**31), 2**31 - 1), "bigint": (-(2**63), 2**63 - 1)}
IDS = {"id", "run", "root", "parent", "needs"}
"""Columns that have the type uuid on PostgreSQL, and `node` of `edges`."""

PAGES = [
    "/", "/runs", "/runs?tag=t", "/runs?error=x", "/runs/{id}", "/workers", "/limits", "/schedules", "/gates",
    "/api/v1/runs", "/api/v1/runs?tag=t", "/api/v1/runs?error=x", "/api/v1/runs?state=ready", "/api/v1/runs/{id}",
    "/api/v1/runs/{id}/why", "/api/v1/counts", "/api/v1/stats", "/api/v1/queues", "/api/v1/workers", "/api/v1/limits",
    "/api/v1/schedules", "/api/v1/schedules/sound", "/api/v1/schedules/broken", "/api/v1/gates", "/metrics",
]  # fmt: skip
RUN_PAGES = ["/runs/{id}", "/api/v1/runs/{id}", "/api/v1/runs/{id}/why"]
PARTS_OF_RUNS = ["steps", "history", "children", "nodes"]
COMMANDS = [
    "runs", "runs --tag t", "show {id}", "why {id}", "doctor", "workers", "stats", "limits", "queues", "schedules",
]  # fmt: skip

SHAPES = [
    ("runs", "args", "'[[[7]]]'"), ("runs", "args", "'~z:AAAA'"), ("runs", "args", "bomb"), ("runs", "result", "bomb"),
    ("runs", "limits", "'[1, null]'"), ("runs", "limits", "'[\"x\", \"[]\", \"7\", \"[1, 2]\"]'"),
    ("runs", "options", "'{\"retry\": 7, \"timeout\": \"x\", \"scheduled_for\": []}'"),
    ("runs", "tags", "'{\"a\": 1}'"),
    ("runs", "kind", "'graph'"), ("runs", "held", "'banana'"), ("runs", "session", "'nobody'"),
    ("runs", "lane", "777777"), ("checkpoints", "value", "bomb"), ("checkpoints", "kind", "'banana'"),
    ("workers", "info", "'{\"queues\": 7, \"concurrency\": \"x\", \"tasks\": 3}'"),
    ("workers", "status", "'{\"problem\": 7, \"loop_lag\": \"x\", \"lost_threads\": [], \"leftover\": 7}'"),
    ("limits", "log", "'[7, null]'"), ("limits", "place", "'7'"), ("schedules", "timing", "'{\"every\": \"x\"}'"),
    ("schedules", "template", "'{\"task\": 7}'"),
]  # fmt: skip
"""Values that are valid JSON of another shape, and payloads that grow to 150 MB."""

EVERY_RUN = {
    "runs.attempt max", "runs.fence max", "runs.records max", "runs.crashes max", "runs.deadline min",
    "runs.due_at min", "runs.turn max", "runs.created_at min", f"runs.limits {BAD_JSON}", f"runs.args {BAD_JSON}",
    f"runs.args {NOT_UTF8}",
    f"runs.args {BLOB}", "runs.priority 'junk'", f"runs.result {BAD_JSON}", f"runs.plan {BAD_JSON}",
    f"runs.options {BAD_JSON}", f"runs.session {BLOB}", "runs.lane 777777",
}  # fmt: skip
"""Cases that run by default; the others are slow, together."""
TOGETHER = {
    "texts": [
        ("limits", "log", BAD_JSON), ("schedules", "timing", BAD_JSON), ("tallies", "waits", BAD_JSON),
        ("history", "data", BAD_JSON), ("slots", "run", BAD_JSON), ("waits", "key", BLOB),
        ("workers", "status", NOT_UTF8),
    ],
    "numbers": [
        ("limits", "used", BLOB), ("schedules", "next_at", "min"), ("waits", "due_at", "min"),
        ("workers", "lease_until", "min"),
    ],
}  # fmt: skip
"""Cases of other tables, which run by default at the same time: a row of one table hides none of another."""

MARKED = {
    "runs.result": ("result", BAD_JSON), "runs.options": ("options", BAD_JSON), "runs.args": ("args", BAD_JSON),
    "runs.created_at": ("created_at", "min"),
}  # fmt: skip
QUARANTINED = {"runs.attempt max", "runs.fence max"}
"""Cases in which only quarantine ends the run. One whose deadline has passed may be failed by the timers first."""


@cache
def bomb() -> str:
    """Return a payload of 200 KB that decompresses to 150 MB."""
    data = zlib.compress(b'"' + b"a" * 150_000_000 + b'"')
    return f"'~z:{base64.b64encode(data).decode()}'"


@cache
def columns() -> list[tuple[str, str, str]]:
    """Return table, column and type of every column, from the migrations."""
    with Holdfast("sqlite:///:memory:") as app:
        app.store.prepare()
        tables = fetch(
            app, "select replace(name, '{}', '') from sqlite_schema where type = 'table' and name like '{}%'"
        )
        return [
            (table, name, kind.lower())
            for (table,) in tables
            if table != "meta"
            for _, name, kind, *_ in fetch(app, f"select * from pragma_table_info('{{}}{table}')")
        ]


def values(database: str, table: str, column: str, kind: str) -> list[str]:
    """Return bad values of a column: a name, or a SQL expression."""
    if kind in INTEGERS or kind == "integer":
        return ["min", "max", "-7", *(["'junk'", "1e300", BLOB] if database == "sqlite" else [])]
    if database == "postgres" and (column in IDS or (table, column) == ("edges", "node")):
        return [] if column == "id" and table != "tokens" else [NIL]
    return [BAD_JSON, "'[7]'", "''", *([BLOB, NOT_UTF8, "char(0)"] if database == "sqlite" else [])]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Pass the cases to tests of one corrupt value. Two thousand skipped tests would cost each run ten seconds."""
    if {"table", "column", "value"}.issubset(metafunc.fixturenames):
        with_slow = metafunc.config.getoption("--slow")
        wanted = [*cases("sqlite", with_slow=with_slow), *cases("postgres", with_slow=with_slow)]
        metafunc.parametrize(("database", "table", "column", "value"), wanted)


def cases(database: str, *, with_slow: bool) -> Iterator[Any]:
    shapes = [(database, *shape) for shape in SHAPES]
    every = [
        (database, table, name, value)
        for table, name, kind in columns()
        for value in values(database, table, name, kind)
    ]
    for case in dict.fromkeys(shapes + every):
        name = f"{case[1]}.{case[2]} {case[3]}"
        if name in EVERY_RUN:
            yield pytest.param(*case, id=f"{database} {name}")
        elif with_slow:
            yield pytest.param(*case, marks=pytest.mark.slow, id=f"{database} {name}")


def sql_value(database: str, table: str, column: str, value: str) -> str:
    if value == "bomb":
        return bomb()
    if value in ("min", "max"):
        kind = next(kind for known, name, kind in columns() if (known, name) == (table, column))
        bounds = INTEGERS["bigint" if database == "sqlite" else kind]
        return str(bounds[value == "max"])
    return value


@pytest.fixture(scope="module")
def sqlite_dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs]:
    file = tmp_path_factory.mktemp("corrupt") / "template.db"
    runs = build_dataset(f"sqlite:///{file}")
    connection = apsw.Connection(str(file))
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    connection.close()
    return file, runs


@pytest.fixture(scope="module")
def postgres_dataset(databases: DatabaseFactory) -> Iterator[tuple[str, Runs]]:
    url = databases.create("holdfast")
    yield database_of(url), build_dataset(url)
    databases.drop(url)


@pytest.fixture
def dataset(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Dataset]:
    """A copy of the dataset."""
    if database == "sqlite":
        template, runs = request.getfixturevalue("sqlite_dataset")
        shutil.copyfile(template, tmp_path / "copy.db")
        dataset = Dataset(f"sqlite:///{tmp_path / 'copy.db'}", runs)
        yield dataset
        dataset.app.close()
        return
    name, runs = request.getfixturevalue("postgres_dataset")
    databases = request.getfixturevalue("databases")
    dataset = Dataset(databases.create_empty(name), runs)
    yield dataset
    dataset.app.close()
    databases.drop(dataset.url)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check_pages(dataset: Dataset, table: str) -> None:
    """Check that every page responds, also those about corrupt runs."""
    site = dashboard(dataset.app, unlocked=True)
    visitor = Visitor(site)
    paths = [path.format(id=dataset.runs.kept["sound"]) for path in PAGES]
    parts = []
    if table in ("runs", "history", "checkpoints", "waits", "messages", "chunks", "keys", "edges"):
        for id in [*dataset.runs.of("broken"), dataset.runs.kept["broken"]]:
            paths += [path.format(id=id) for path in RUN_PAGES]
            parts += [f"/api/v1/runs/{id}/{part}" for part in PARTS_OF_RUNS]
    try:
        statuses = {path: visitor.get(path).status for path in paths}
        assert {path: status for path, status in statuses.items() if status != 200} == {}
        # A run has no nodes, or its lane is missing: that is no error of the server.
        assert [path for path in parts if visitor.get(path).status >= 500] == []
        listed = visitor.get("/api/v1/runs?limit=100").json["runs"]
        assert set(dataset.runs.of("sound")) < {run["id"] for run in listed}
    finally:
        site.close()


def check_marks(dataset: Dataset, column: str) -> None:
    """Check that the page, the list and the command of a corrupt run say so."""
    site = dashboard(dataset.app, unlocked=True)
    visitor = Visitor(site)
    id = dataset.runs.kept["broken"]
    try:
        assert column in visitor.get(f"/api/v1/runs/{id}").json["info"]["corrupt"]
        page = visitor.get(f"/runs/{id}").text
        assert "Corrupt row" in page
        assert column in page
        if column not in ("args", "result"):  # lists show the start of arguments or a remark, and no results
            assert "corrupt row" in visitor.get("/runs").text
    finally:
        site.close()
    shown = CliRunner().invoke(holdfast, ["--url", dataset.url, "show", id]).output
    assert f"corrupt {column}" in " ".join(shown.split())


def check_commands(dataset: Dataset) -> None:
    for command in COMMANDS:
        words = ["--url", dataset.url, *command.format(id=dataset.runs.kept["sound"]).split()]
        result = CliRunner().invoke(holdfast, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
        assert result.exit_code in (0, 1), (command, result.output)
        assert "rror:" not in result.stderr, (command, result.output)


def finish_sound_runs(dataset: Dataset, *, without: tuple[str, ...] = ()) -> None:
    """Run a worker until every healthy run has finished and the healthy schedule has created a run."""
    dataset.make_all_due()
    with dataset.app.worker(lease=LEASE_S, concurrency=4):
        dataset.go_on()
        for (kind, mark), id in dataset.runs.active.items():
            if mark == "sound" and kind not in without:
                run = dataset.app.get_run(id)
                wait_until(lambda run=run: run.info().finished_at, WAIT_S, kind)
                assert run.info().error is None or kind == "overdue", run.info().error
        wait_until(dataset.slot_created, WAIT_S, "the slot of a schedule")


def test_a_corrupt_row_affects_no_healthy_run_and_no_page(dataset, database, table, column, value):
    refused = dataset.corrupt(table, column, sql_value(database, table, column, value))
    if refused is not None:
        assert "constraint" in refused or "datatype mismatch" in refused or "generated always" in refused, refused
        return
    check_pages(dataset, table)
    marked = MARKED.get(f"{table}.{column}")
    if marked is not None and marked[1] == value:
        check_marks(dataset, marked[0])
    # The lane of tasks named `child` is the corrupt one.
    check_that_all_goes_on(dataset, without=("parent",) if table == "lanes" else ())
    if f"{table}.{column} {value}" in QUARANTINED and database == "postgres":
        check_quarantine(dataset, column)


@pytest.mark.parametrize("kind", TOGETHER)
def test_corrupt_rows_of_several_tables_affect_no_healthy_run_and_no_page(dataset, database, kind):
    possible = [case for case in TOGETHER[kind] if database == "sqlite" or case[2] not in (BLOB, NOT_UTF8)]
    refused = [dataset.corrupt(*case[:2], sql_value(database, *case)) for case in possible]
    assert refused.count(None) >= 3
    check_pages(dataset, "runs")
    check_that_all_goes_on(dataset)


def check_that_all_goes_on(dataset: Dataset, *, without: tuple[str, ...] = ()) -> None:
    """Check that runs finish, old ones are pruned, statistics are aggregated, and all pages and commands respond."""
    finish_sound_runs(dataset, without=without)
    dataset.app.store.retention.prune()
    assert not fetch(dataset.app, f"select 1 from {{}}runs where id = '{dataset.runs.old['sound']}'")
    dataset.app.store.stats.aggregate()
    check_pages(dataset, "")
    check_commands(dataset)


def check_quarantine(dataset: Dataset, column: str) -> None:
    """Check that `holdfast doctor` names the culprits, and that their history has what was stored."""
    control = Control(dataset.app.store, dataset.app.registry)
    (finding,) = [each for each in control.doctor.examine().findings if each.code == "quarantined"]
    assert finding.level == "wrong"
    details = control.runs.details(control.runs.parse_id(finding.data["runs"][0]))
    assert details.info.state == "failed"
    assert details.info.error.code == "corrupt_row"
    assert column in details.info.error.message
    (entry,) = [each for each in details.history if each.kind == "quarantined"]
    assert column in entry.data["columns"]


@pytest.mark.parametrize("limits", [BAD_JSON, "'{\"a\": 1}'", "'[1, null]'"])
def test_a_run_with_unreadable_limits_fails_with_an_explanation(dataset, limits):
    """It must neither be claimed with wrong permits nor be skipped forever."""
    dataset.corrupt("runs", "limits", limits)
    dataset.make_all_due()
    with dataset.app.worker(lease=LEASE_S, concurrency=1):
        for kind in ("job", "limited", "stranded", "stranded_limited", "isolated"):
            run = dataset.app.get_run(dataset.runs.active[kind, "broken"])
            wait_until(lambda run=run: run.info().finished_at, WAIT_S, kind)
            assert run.info().state == "failed", kind
            assert "stored limits are corrupt" in run.info().error.message


def test_a_run_in_a_missing_lane_is_reported(dataset):
    """Its queue and task are unknown."""
    dataset.corrupt("runs", "lane", "777777")
    control = Control(dataset.app.store, dataset.app.registry)
    (finding,) = [each for each in control.doctor.examine().findings if each.code == "missing_lane"]
    assert finding.data["lane"] == 777_777
    info = control.runs.info(control.runs.parse_id(dataset.runs.kept["broken"]))
    assert (info.task, info.corrupt) == ("(unknown)", ("lane",))


def test_a_run_held_for_an_unknown_reason_is_explained(dataset):
    dataset.corrupt("runs", "held", "'banana'")
    control = Control(dataset.app.store, dataset.app.registry)
    id = control.runs.parse_id(dataset.runs.active["job", "broken"])
    assert [(reason.code, reason.data) for reason in control.whys.why(id).reasons] == [("held", {"held": "banana"})]


def test_an_unreadable_result_hides_no_other_run(dataset):
    dataset.corrupt("runs", "result", BAD_JSON)
    listed = {str(info.id): info for info in dataset.app.runs(limit=200)}
    broken, sound = (dataset.runs.kept[mark] for mark in ("broken", "sound"))
    assert {broken, sound} <= listed.keys()
    control = Control(dataset.app.store, dataset.app.registry)
    shown = [control.runs.info(control.runs.parse_id(id)) for id in (broken, sound)]
    assert [(info.result, info.corrupt) for info in shown] == [(None, ("result",)), ("sound", ())]
    with pytest.raises(PayloadError):
        dataset.app.get_run(broken).result(timeout=1)


def test_a_schedule_that_cannot_be_read_is_reported(dataset):
    dataset.corrupt("schedules", "timing", BAD_JSON)
    control = Control(dataset.app.store, dataset.app.registry)
    found = [each.data["schedule"] for each in control.doctor.examine().findings if each.code == "unreadable_schedule"]
    assert found == ["broken", "trigger broken"]


def test_a_payload_that_grows_when_decompressed_fills_no_memory(dataset):
    id = dataset.runs.kept["broken"]
    fetch(dataset.app, f"update {{}}runs set args = {bomb()}, result = {bomb()} where id = '{id}'")
    site = dashboard(dataset.app, unlocked=True)
    visitor = Visitor(site)
    try:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for path in ("/runs", "/api/v1/runs", f"/runs/{id}", f"/api/v1/runs/{id}"):
            assert visitor.get(path).status == 200
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    finally:
        site.close()
    assert grown_kib < 60 * 1024


class TestOtherTypesOnSqlite:
    """SQLite stores any type in any column, also in tables that runs don't depend on.

    On SQLite only: the column types of PostgreSQL refuse these values, so no row can contain them.
    """

    VALUES = ("'junk'", "x'fffe'", "1e300")

    @pytest.fixture
    def control(self, sqlite_url: str) -> Iterator[Control]:
        with Holdfast(sqlite_url) as app:

            @app.task(name="walk")
            async def walk(ctx: Context) -> None:
                await ctx.step(len, "one")
                await ctx.wait_for("go")

            self.app, self.run = app, walk.enqueue()
            app.emit("gone", {"a": 1})
            app.worker().drain(timeout=30)
            yield Control(app.store, app.registry)

    @pytest.mark.parametrize("value", VALUES)
    def test_a_token_with_a_corrupt_end_is_listed_and_not_valid(self, control, value):
        for column in ("expires_at", "revoked_at"):
            token = control.tokens.create(["admin"], name=column)
            assert control.tokens.check(token.token) is not None
            fetch(self.app, f"update {{}}tokens set {column} = {value}, created_at = {value}, used_at = {value}")
            assert [info.is_valid for info in control.tokens.list() if info.name == column] == [False]
            assert control.tokens.check(token.token) is None

    @pytest.mark.parametrize("value", VALUES)
    def test_events_with_corrupt_values_are_listed(self, control, value):
        fetch(self.app, f"update {{}}events set emitted_at = {value}, payload = {value} where emitted_at is not null")
        fetch(self.app, f"update {{}}waits set since = {value}")
        events = control.events.list()
        assert [event.name for event in events.emitted] == ["gone"]
        assert [event.name for event in events.awaited] == ["go"]
        control.events.show("gone")
        assert len(control.events.waiters("go")) == 1

    @pytest.mark.parametrize("value", VALUES)
    def test_budgets_with_corrupt_values_stop_no_other_run_and_are_listed(self, control, value):
        app = self.app
        app.budget("usd", limit=1, per="tenant")
        app.budget("calls", limit=10)

        @app.task(name="agent")
        async def agent(ctx: Context, budget: str) -> None:
            await ctx.spend(budget, 2)

        stopped = agent.enqueue("usd")
        app.worker().drain(timeout=30)
        for column in ("bound", "period", "declared_bound", "set_at", "set_by", "check_at"):
            fetch(app, f"update or ignore {{}}budgets set {column} = {value} where name = 'usd'")
        for column in ("spent", "total", "period_start", "bound", "set_at", "set_by", "waiting"):
            fetch(app, f"update {{}}budget_totals set {column} = {value} where name = 'usd'")
        runs = [agent.enqueue("usd"), agent.enqueue("calls")]
        app.worker().drain(timeout=30)
        assert runs[1].info().state == "done"
        assert [budget.name for budget in control.budgets.list()] == ["calls", "usd"]
        stopped.spent()
        control.runs.details(stopped.id)
        control.whys.why(stopped.id)
        control.doctor.examine()
        control.budgets.set("usd", 5)

    @pytest.mark.parametrize("value", VALUES)
    def test_a_step_with_a_corrupt_value_is_shown(self, control, value):
        fetch(self.app, f"update {{}}checkpoints set value = {value}")
        assert [step.name for step in control.runs.details(self.run.id).steps][:1] == ["len"]

    def test_a_run_with_a_corrupt_id_hides_no_other(self, control):
        other = self.app.remote("walk").enqueue()
        fetch(self.app, f"update {{}}runs set id = {2**63 - 1} where id = '{self.run.id}'")
        assert other.id in {info.id for info in self.app.runs()}
        assert [info.corrupt for info in self.app.runs() if info.id != other.id] == [("id",)]
