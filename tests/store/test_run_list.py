"""Pages of runs by filter: the same runs as a full scan finds, however small the portions are."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.errors import ConfigError
from holdfast.model.clock import to_datetime
from holdfast.model.filters import RunFilter
from holdfast.store import run_list
from holdfast.store.module import json_rows
from tests.support.store_harness import SECOND

COUNT = 400
PER_RUN = 60 * SECOND
ERRORS = (None, '{"code":"error","type":"ValueError","message":"no \\"Funds\\" at 100%"}', '{"message":"time_out!"}')
INSERT = """
insert into {schema}runs (id, lane, priority, state, due_at, session, max_crashes, args, keep, created_at, finished_at,
    error, tenant, tags, root, parent, ending, kind)
select cast(each.id as {uuid}), each.lane, 0, each.state, each.due_at, each.session, 3, coalesce(each.args, '[]'), 1,
    each.created_at, each.finished_at, each.error, each.tenant, each.tags, cast(each.root as {uuid}),
    cast(each.root as {uuid}), each.ending, each.kind
from {each(:rows, COLUMNS)}
""".replace(
    "COLUMNS",
    "id uuid, lane bigint, state text, due_at bigint, session text, created_at bigint, finished_at bigint, error text,"
    " tenant text, tags text, root uuid, ending text, kind text, args text",
)
STORED = (
    "ready",
    "scheduled",
    "running",
    "waiting",
    "blocked",
    "done",
    "done",
    "done",
    "failed",
    "cancelled",
    "skipped",
)


def id_at(micros: int, n: int) -> str:
    return str(UUID(int=(micros // 1000) << 80 | 0x7 << 76 | 0b10 << 62 | n))


@pytest.fixture
def many(harness):
    """Some hundred runs of all kinds, one a minute, as the rows that went in."""
    chance = random.Random(7)
    lanes = [harness.lane(task, queue) for task in ("t1", "t2") for queue in ("q1", "q2")]
    flows, rows = harness.lane("flow", "$graph"), []
    for n in range(COUNT):
        created_at = harness.clock() + n * PER_RUN
        state = chance.choice(STORED)
        ended = state in ("done", "failed", "cancelled", "skipped")
        unfinished = state in ("ready", "scheduled", "waiting")
        is_graph, lane = state == "waiting" and n % 2 == 0, chance.choice(lanes)
        rows.append(
            {
                "id": id_at(created_at, n), "lane": flows if is_graph else lane, "state": state,
                "created_at": created_at,
                "due_at": created_at if state == "scheduled" else None, "session": "w" if state == "running" else None,
                "finished_at": created_at + chance.randrange(100) * PER_RUN if ended else None,
                "error": None if state == "done" else chance.choice(ERRORS),
                "tenant": chance.choice((None, "acme", "other")), "tags": chance.choice((None, '["red"]', '["a","b"]')),
                "root": chance.choice(rows[:5])["id"] if n > 5 and n % 3 == 0 else None,
                "ending": "failed" if unfinished and n % 7 == 0 else None,
                "kind": "graph" if is_graph else None,
                "args": f'{{"number":{n % 20},"text":"7 numbers"}}' if n % 3 else f'{{"number":{n % 20}}}',
            }
        )  # fmt: skip
    harness.sql(INSERT, rows=json_rows(rows))
    return rows


def everything(harness):
    """Return every run as it is shown, newest first, by a full scan."""
    found = harness.sql("select id, state, task, queue from {schema}shown_runs order by id desc")
    return {str(id): (state, task, queue) for id, state, task, queue in found}


def words(error):
    """Return the criteria to choose from."""
    return "\n".join(v for k, v in json.loads(error or "{}").items() if v and k in ("code", "type", "message")).lower()


def fits(asked, row, shown):
    state, task, queue = shown
    between = (
        (asked.created_from, asked.created_to, row["created_at"]),
        (asked.finished_from, asked.finished_to, row["finished_at"]),
    )
    for low, high, at in between:
        if (low or high) and at is None:
            return False
        if (low and to_datetime(at) < low) or (high and to_datetime(at) >= high):
            return False
    return (
        (not asked.states or state in asked.states)
        and asked.task in (None, task)
        and asked.queue in (None, queue)
        and asked.tenant in (None, row["tenant"])
        and (asked.tag is None or f'"{asked.tag}"' in (row["tags"] or ""))
        and (asked.error is None or asked.error.lower() in words(row["error"]))
        and (asked.id_prefix is None or row["id"].replace("-", "").startswith(asked.id_prefix))
        and (asked.parent is None or row["root"] == str(asked.parent))
        and (asked.family is None or str(asked.family) in (row["root"], row["id"]))
        and (not asked.top_level or row["root"] is None)
        and (not asked.ids or UUID(row["id"]) in asked.ids)
        and (asked.search is None or has_text(asked.search, row))
    )


def has_text(text, row):
    args, error = json.loads(row["args"]), words(row["error"])
    number = args["number"]
    if text in args.get("text", ""):
        return True
    return text.lower() in error or text in (str(number), f"number={number}") or text in json.loads(row["tags"] or "[]")


def random_filter(chance, many):
    """Return a filter with up to three criteria."""
    start = to_datetime(many[0]["created_at"])
    time = lambda: start + timedelta(minutes=chance.randrange(COUNT + 100))  # noqa: E731
    makers = {
        "states": lambda: tuple(
            chance.sample(("ready", "running", "waiting", "undoing", "failed", "done", "skipped"), 2)
        ),
        "task": lambda: chance.choice(("t1", "t2", "unknown")),
        "queue": lambda: chance.choice(("q1", "q2")),
        "tenant": lambda: chance.choice(("acme", "nobody")),
        "tag": lambda: chance.choice(("red", "b", "re")),
        "created_from": time,
        "created_to": time,
        "finished_from": time,
        "finished_to": time,
        "error": lambda: chance.choice(("valueerror", 'no "funds"', "100%", "time_out!", "100_", "message")),
        "id_prefix": lambda: chance.choice(many)["id"].replace("-", "")[: chance.randrange(6, 13)],
        "parent": lambda: UUID(chance.choice(many[:5])["id"]),
        "family": lambda: UUID(chance.choice(many[:5])["id"]),
        "top_level": lambda: True,
        "ids": lambda: tuple(UUID(row["id"]) for row in chance.sample(many, 30)),
        "search": lambda: chance.choice(("7", "17", "number=3", "red", "funds", "absent")),
    }
    return RunFilter(**{name: makers[name]() for name in chance.sample(sorted(makers), chance.randrange(4))})


@pytest.mark.parametrize(("walk", "few"), [(10_000, 2_000), (40, 10), (25, 100)])
def test_pages_equal_a_full_scan(harness, many, monkeypatch, walk, few):
    """Whether streams are cut off, whether heaps count as small: no run is missed or returned twice."""
    monkeypatch.setattr(run_list, "MAX_STREAM_CANDIDATES", walk)
    monkeypatch.setattr(run_list, "MAX_HEAP_RUNS", few)
    monkeypatch.setattr(run_list, "PORTION_SIZES", (5, 30))
    monkeypatch.setattr(run_list, "MAX_SCANNED_RUNS", 2 * walk)
    monkeypatch.setattr(run_list, "SCAN_SIZES", (few, 35))
    monkeypatch.setattr(run_list, "MIN_TEXT_PORTION", 2)
    monkeypatch.setattr(run_list, "MAX_CHECKED_RUNS", few)
    monkeypatch.setattr(run_list, "MAX_TAG_STREAMS", few // 50)
    chance = random.Random(walk)
    rows = {row["id"]: row for row in many}
    shown = everything(harness)
    for _ in range(30):
        asked = random_filter(chance, many)
        expected = [id for id in shown if fits(asked, rows[id], shown[id])]
        assert all_pages(harness, asked, chance.choice((7, 20, 1000))) == expected, asked
        selected = harness.store.run_list.select(asked, 5, chance.choice((3, 1000)))
        assert selected.matching == len(expected) if selected.exact else 0 <= selected.matching <= len(expected), asked
        assert [row.id for row in selected.newest] == expected[: len(selected.newest)], asked
        assert len(selected.newest) == min(5, len(expected)) or not selected.exact, asked


def all_pages(harness, asked, size):
    found, after = [], None
    while True:
        page = harness.store.run_list.page(asked, size, after)
        assert len(page.rows) <= size
        assert page.partial == (page.after is not None and len(page.rows) < size) or len(page.rows) == size
        found += [row.id for row in page.rows]
        if page.after is None:
            return found
        assert after is None or page.after < after, "it goes on"
        after = page.after


def test_a_page_that_skips_too_many_is_partial_and_has_a_cursor(harness, many, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_TAG_LISTS", 0)
    monkeypatch.setattr(run_list, "MAX_SCANNED_RUNS", 100)
    first = harness.store.run_list.page(RunFilter(tag="nobody has it"), 10)
    assert (first.rows, first.partial) == ([], True)
    passed = [row["id"] for row in many if row["id"] >= first.after]
    assert len(passed) == 100
    assert harness.store.run_list.page(RunFilter(tag="red"), 5).partial is False


def test_error_search_matches_message_type_and_code_not_the_json(harness):
    lane = harness.lane("t", "q")
    error = '{"code":"timeout","type":"shop.Déjà","message":"line\\none \\u00e9 \\\\","traceback":"File x"}'
    row = {"id": id_at(harness.clock(), 1), "lane": lane, "state": "failed", "created_at": 1, "finished_at": 2}
    harness.sql(INSERT, rows=json_rows([row | {"error": error}]))
    for text, found in {
        "TIMEOUT": 1, "shop.D": 1, "one é \\": 1, "é": 1,
        "message": 0, "traceback": 0, "File x": 0, "null": 0, '"': 0, "\\n": 0,
    }.items():  # fmt: skip
        assert len(harness.store.run_list.page(RunFilter(error=text), 10).rows) == found, text


def test_a_page_of_many_lanes_walks_no_further_than_one_of_a_single_lane(harness, many, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_TAG_LISTS", 0)
    monkeypatch.setattr(run_list, "MAX_STREAM_CANDIDATES", 40)
    page = harness.store.run_list.page(RunFilter(queue="q1", tag="nobody has it"), 10)
    lanes = {harness.lane(task, "q1") for task in ("t1", "t2")}
    passed = [row for row in many if row["id"] >= page.after and row["lane"] in lanes and row["finished_at"]]
    assert page.partial
    assert len(passed) <= 40


def test_small_heaps_may_be_too_large_together(harness, many, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_TAG_LISTS", 0)
    asked = RunFilter(states=("ready", "scheduled", "waiting"), tag="nobody has it")
    assert harness.store.run_list.page(asked, 10)[:3] == ([], None, False)
    monkeypatch.setattr(run_list, "MAX_HEAP_RUNS_TOTAL", 20)
    monkeypatch.setattr(run_list, "MAX_SCANNED_RUNS", 40)
    assert harness.store.run_list.page(asked, 10).partial


def test_running_runs_are_found_beside_any_number_of_waiting_ones(harness, many, monkeypatch):
    """Among what waits, only graphs may be running."""
    harness.sql("update {schema}runs set state = 'waiting', finished_at = null where state = 'done'")
    graph = next(row for row in many if row["kind"] is not None)
    ready = next(row for row in many if row["state"] == "ready" and row["ending"] is None)
    harness.sql("update {schema}runs set ending = null where id = cast(:id as {uuid})", id=graph["id"])
    node = {"id": ready["id"], "graph": graph["id"]}
    harness.sql(
        "update {schema}runs set parent = cast(:graph as {uuid}), node = 'n' where id = cast(:id as {uuid})", **node
    )
    shown = everything(harness)
    running = [id for id, (state, _, _) in shown.items() if state == "running"]
    stored = {str(id): state for id, state in harness.sql("select id, state from {schema}runs")}
    assert {stored[id] for id in running} == {"running", "waiting"}, "a graph is one of them"
    graphs = sum(row["kind"] is not None for row in many)
    monkeypatch.setattr(run_list, "MAX_HEAP_RUNS", max(len(running), graphs))
    assert sum(state == "waiting" for state in stored.values()) > run_list.MAX_HEAP_RUNS
    monkeypatch.setattr(run_list, "MAX_SCANNED_RUNS", 10)
    page = harness.store.run_list.page(RunFilter(states=("running",)), COUNT)
    assert ([row.id for row in page.rows], page.partial) == (running, False)


def test_an_unknown_task_needs_no_scan(harness, many, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_STREAM_CANDIDATES", 100)
    assert harness.store.run_list.page(RunFilter(task="unknown"), 10)[:3] == ([], None, False)


def test_failed_runs_are_found_behind_any_number_of_others(harness, many, monkeypatch):
    """By an index of their own, without a scan."""
    monkeypatch.setattr(run_list, "MAX_STREAM_CANDIDATES", 1)
    failed = [row["id"] for row in many if row["state"] == "failed"][::-1]
    page = harness.store.run_list.page(RunFilter(states=("failed",)), 10)
    assert ([row.id for row in page.rows], page.partial) == (failed[:10], False)


def test_failures_of_a_task_or_tenant_are_found_and_counted_behind_many_others(harness, monkeypatch):
    """The database filters the index of failures, so only those that match count as candidates."""
    rare = harness.add(task="rare", tenant="acme")
    harness.add_many(60, tenant="other")
    harness.sql("update {schema}runs set state = 'failed', finished_at = 1")
    monkeypatch.setattr(run_list, "MAX_STREAM_CANDIDATES", 1)
    for asked in (RunFilter(states=("failed",), task="rare"), RunFilter(states=("failed",), tenant="acme")):
        page = harness.store.run_list.page(asked, 10)
        assert ([row.id for row in page.rows], page.partial) == ([rare], False)
        assert harness.store.run_list.select(asked, 5, 100)[1:] == (1, True)
    assert harness.store.run_list.select(RunFilter(states=("failed",)), 5, 20)[1:] == (20, False)
    assert harness.store.run_list.select(RunFilter(states=("failed",)), 5, 61)[1:] == (61, True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"state": "flying"}, "unknown state 'flying'"),
        ({"state": ["done", "flying"]}, "unknown state 'flying'"),
        ({"id_prefix": "xyz"}, "invalid run id prefix"),
        ({"error": ""}, "must not be empty"),
        ({"tenant": "a\0"}, "control character"),
        ({"created_from": 5}, "must be a datetime"),
    ],
)
def test_contradictory_filters_are_rejected(given, says):
    with pytest.raises(ConfigError, match=says):
        RunFilter.of(given)
