"""Corrupt runs among those of a failed batch: found one by one, mended, recorded and failed; the others go on."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from holdfast import Context, Holdfast
from holdfast.database import migrate
from holdfast.database.faults import DataFault
from holdfast.store.typed_rows import RowReader
from tests.support.history_queries import fetch
from tests.support.store_harness import StoreHarness

TIME_COLUMNS = ("lifetime", "created_at", "claimed_at", "ready_at", "started_at", "due_at", "deadline")
FAULTS = {"sqlite": ("args", "x'ff'"), "postgres": ("attempt", f"{2**31 - 1}")}
"""A column with a value that breaks a claim."""


def corrupt(harness: StoreHarness, id: str) -> str:
    """Corrupt a run and return the column."""
    column, value = FAULTS[harness.store.database.dialect.name]
    harness.sql(f"update {{schema}}runs set {column} = {value} where id = '{id}'")
    return column


def data_of(harness: StoreHarness, id: str) -> dict[str, object]:
    ((text,),) = harness.sql(f"select data from {{schema}}history where run = '{id}' and kind = 'quarantined'")
    return msgspec.json.decode(text)


def test_a_corrupt_run_in_a_claim_fails_with_a_record_and_the_others_are_claimed(harness):
    harness.session("w")
    ids = [harness.add() for _ in range(3)]
    column = corrupt(harness, ids[1])
    assert {claim.id for claim in harness.claim("w", 10)} == {ids[0], ids[2]}
    row = harness.row(ids[1])
    assert (row["state"], row[column]) == ("failed", 0 if harness.on_postgres else "\ufffd")
    assert msgspec.json.decode(row["error"])["code"] == "corrupt_row"
    assert harness.kinds(ids[1]) == ["quarantined", "failed"]
    assert set(data_of(harness, ids[1])["columns"]) == {column}
    assert harness.store.quarantine.list_all(10) == [ids[1]]


def test_a_quarantined_run_can_be_retried(harness):
    harness.session("w")
    id = harness.add()
    corrupt(harness, id)
    assert harness.claim("w") == []
    assert harness.store.actions.retry(id)
    (claim,) = harness.claim("w")
    assert claim.id == id
    assert harness.store.quarantine.list_all(10) == []


def test_a_quarantined_child_fails_its_parent(database_url):
    with Holdfast(database_url) as app:

        @app.task(name="child", queue="later")
        def child() -> int:
            return 1

        @app.task(name="parent")
        async def parent(ctx: Context) -> int:
            return await ctx.call(child)

        run = parent.enqueue()
        app.worker(queues=["default"]).drain(timeout=30)
        column, value = FAULTS[app.store.database.dialect.name]
        fetch(app, f"update {{}}runs set {column} = {value} where parent is not null")
        app.worker().drain(timeout=30)
        assert run.info().state == "failed"
        assert "corrupt" in run.info().error.message


def test_a_row_without_a_fault_is_left_alone_and_the_error_stays(harness):
    """Quarantine finds no culprit, so the caller gets the error of the batch."""
    harness.session("w")
    id = harness.add()

    def work() -> None:
        raise DataFault("another reason")

    with pytest.raises(DataFault, match="another reason"):
        harness.store.claims._past_corrupt_rows("claim", work, lambda tx: [id])
    assert harness.state(id) == "ready"


def test_the_doctor_reports_values_that_no_release_writes(harness):
    """The schema of SQLite refuses some of them. PostgreSQL would parse such a rule for every statement."""
    id = harness.add()
    longest = 400_000_000_000_000_000
    forbidden: dict[str, list[object]] = {
        "turn": [-(2**62) - 1, 2**62 + 1], "fence": [-1, 2**62 + 1], "attempt": [-1, 2_000_000_001],
        "failures": [-1, 2_000_000_001], "crashes": [-1, 2_000_000_001], "deaths": [-1, 2_000_000_001],
        "generation": [-1, 2_000_000_001], "records": [-1, 2_000_000_001], "keep": [-1, longest + 1],
        "keep_failed": [-1, longest + 1], "spent": [-1, longest + 1],
        **{column: [-longest - 1, longest + 1] for column in (*TIME_COLUMNS, "start_by")},
        "kind": ["'job'"], "ending": ["'done'"],
    }  # fmt: skip
    refused = []
    for column, value in [(column, value) for column, values in forbidden.items() for value in values]:
        ((valid,),) = harness.sql(f"select {column} from {{schema}}runs")
        try:
            harness.sql(f"update {{schema}}runs set {column} = {value}")
        except DataFault:
            refused.append(column)
        else:
            assert harness.store.quarantine.find_corrupt() == {id: [column]}
            harness.sql(f"update {{schema}}runs set {column} = {'null' if valid is None else valid}")
    assert refused == ([] if harness.on_postgres else ["kind", "ending"])
    assert harness.store.quarantine.find_corrupt() == {}


@pytest.mark.no_tables
def test_the_migration_replaces_values_out_of_bounds(database_url, monkeypatch):
    """Otherwise the constraints would refuse every later change of such rows."""
    known = migrate.migrations()
    names = ("0020_bounds.sql", "0040_cheaper_bounds.sql", "0043_fewer_checks.sql", "0044_state_checks.sql")
    [bounds, *shorter] = [each for each in known if each.name in names]
    # Later ones stay: this code needs their columns.
    before = tuple(each for each in known if each not in (bounds, *shorter))
    bounds = msgspec.structs.replace(bounds, number=known[-1].number + 1)
    monkeypatch.setattr(migrate, "migrations", lambda: before)
    old = StoreHarness(database_url)
    ids = [old.add() for _ in range(2)]
    old.sql(
        f"update {{schema}}runs set attempt = {2**31 - 1}, deadline = {-(2**63)}, records = -5 where id = '{ids[0]}'"
    )
    rows = [old.row(id) for id in ids]
    old.close()
    monkeypatch.setattr(migrate, "migrations", lambda: (*before, bounds))
    new = StoreHarness(database_url)
    assert new.store.prepare()[0].startswith("0020")
    assert new.row(ids[0]) == rows[0] | {"attempt": 0, "deadline": None, "records": 0}
    assert new.row(ids[1]) == rows[1]
    new.session("w")
    assert {claim.id for claim in new.claim("w", 2)} == set(ids)
    new.close()


class TestRowReader:
    """Values of another type than their column, as SQLite stores them."""

    class Row(NamedTuple):
        """A row with a column of each kind."""

        name: str
        note: str | None
        count: int
        limit: int | None
        corrupt: tuple[str, ...] = ()

    reader = RowReader(Row)

    @pytest.mark.parametrize(
        ("stored", "read", "corrupt"),
        [
            (("a", None, 1, None), ("a", None, 1, None), ()),
            ((b"\xff\xfea", 5, "junk", "junk"), ("\ufffd\ufffda", "5", 0, None), ("name", "note", "count", "limit")),
            ((None, "n", 2.0, 1e300), ("", "n", 2, None), ("name", "count", "limit")),
        ],
    )
    def test_wrong_types_are_replaced_and_named(self, stored, read, corrupt):
        assert self.reader.read(stored) == (*read, corrupt)


def test_text_that_is_not_utf8_is_read_with_replacements(sqlite_url):
    with Holdfast(sqlite_url) as app:
        run = app.remote("job").enqueue(1)
        fetch(app, "update {}runs set tenant = cast(x'ff41' as text)")
        assert app.get_run(run.id).info().tenant == "\ufffdA"
        assert [info.tenant for info in app.runs()] == ["\ufffdA"]


@pytest.mark.parametrize("keyed", [False, True], ids=["one statement", "a transaction"])
def test_a_row_with_the_highest_possible_number_keeps_no_new_rows_out(sqlite_url, keyed):
    with Holdfast(sqlite_url) as app:
        job = app.remote("job")
        runs = [job.enqueue(n) for n in range(2)]
        fetch(app, f"update {{}}runs set seq = {2**63 - 1} where id = '{runs[0].id}'")
        runs.append(job.options(key="k" if keyed else None).enqueue(2))
        runs += job.enqueue_many([(3,), (4,)])
        numbered = dict(fetch(app, "select id, seq from {}runs"))
        assert [numbered[str(run.id)] for run in runs] == [3, 2, 4, 5, 6]


def test_a_corrupt_run_that_has_ended_meanwhile_is_mended_but_keeps_its_error(harness):
    harness.session("w")
    id = harness.add()
    harness.store.actions.cancel(id, '{"code":"cancelled"}')
    column = corrupt(harness, id)
    assert harness.store.quarantine.examine("client", [id], "test") == [id]
    assert (harness.row(id)["state"], harness.row(id)["error"]) == ("cancelled", '{"code":"cancelled"}')
    assert set(data_of(harness, id)["columns"]) == {column}
    assert harness.store.quarantine.list_all(10) == []
