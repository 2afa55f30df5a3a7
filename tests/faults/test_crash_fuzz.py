"""Durable functions whose worker is killed with -9 at every commit in turn; the outcome is the same as without kills.

`apps/fuzz.py` executes one run after the other: a worker is killed right before or right after its Nth commit, and
another one takes over, for N = 1, 2, 3, … until a run finishes without a kill. This module checks the results.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from holdfast.testing.server import create_database, database_of, drop_database
from tests.faults.apps.durable import ITEMS
from tests.faults.conftest import APPS

STREAMS = 2  # concurrently, each with its own database
TALKED = ["talks", "sends"]
EVERYTHING = ["s1", "s2", "g1", "g2", "c1", *TALKED, *ITEMS, "r1", "e1", "e2", "g3"]
UNDOING = ["u1", "u2", "c1", "u3", "undo-u3", "undo-u2", "undo-plain", "undo-u1"]
EFFECTS = {
    "everything": EVERYTHING,
    "plainly": ["s1", *TALKED, *ITEMS, "c1", "e1", "s2"],
    "undoing": UNDOING,
    "undoing_plainly": UNDOING,
    "graphing": ["n1", "concludes", "n2", "n3", "n4", "n5"],
    "cutting": ["n1", "n2", "n3", "n4"],
    "flowing": ["l1", "l2", "l3", "l4", "d1", "q0", "q1", "k1", "p1", "b1", "b2", "b3", "ended"],
}
RESULTS = {
    "everything": [
        "s1", "s2", "g1", "g2", "c1", "t1", "gone", "first", "second", "t2", *ITEMS, "r1", "timeout", "g3"
    ],
    "plainly": ["s1", "t1", "gone", "first", "second", "t2", *ITEMS, "c1", "s2"],
    "graphing": {"a": "n1", "ok": "yes", "b": "n4", "n": {"x": "n2", "y": "n3"}, "z": "n5"},
    "cutting": [1, 2, 3, 4],
    "flowing": ["l1", "l2", "l3", "l4", "p1", "b1", "b2", "b3"],
}  # fmt: skip
RUNS = {
    "everything": {"everything": 1, "talker": 1, "child": 6, "alone": 2},
    "plainly": {"plainly": 1, "talker": 1, "child": 6, "alone": 1},
    "undoing": {"undoing": 1, "child": 1, "sleeper": 1},
    "undoing_plainly": {"undoing_plainly": 1, "child": 1, "sleeper": 1},
    "graphing": {"graphing": 1, "child": 6},
    "cutting": {"cutting": 1},
    "flowing": {"flowing": 1, "alone": 4, "near": 1, "bulk": 3, "ended": 1},
}
ROWS = {"undoing": ["t1"], "undoing_plainly": ["t1"], "graphing": [], "cutting": [], "flowing": []}
ENOUGH = {
    "everything": 40, "plainly": 35, "undoing": 16, "undoing_plainly": 20, "graphing": 12, "cutting": 10, "flowing": 20
}  # fmt: skip
"""Minimum number of kills; fewer would mean that commits are no longer counted."""
PLACES = {
    "everything": {
        "claim", "record_steps", "record_checkpoints", "add_children", "add_waits", "delete_waits_by_key", "add_runs",
        "add_keys", "add_chunks", "emit_events", "take_messages", "resolve_due_waits", "end_tree_attempts", "wake_runs",
        "release_map_children", "number_history",
    },
    "plainly": {
        "claim", "record_checkpoints", "add_children", "add_waits", "delete_waits_by_key", "add_runs",
        "end_tree_attempts", "number_history",
    },
    "undoing": {"claim", "record_checkpoints", "mark_undos", "add_children", "end_runs", "end_tree_attempts"},
    "undoing_plainly": {"claim", "record_checkpoints", "mark_undos", "add_children", "end_runs", "end_tree_attempts"},
    "graphing": {
        "claim", "record_steps", "add_nodes", "add_edges", "decrement_graphs", "decrement_nodes", "release_nodes",
        "end_without_attempt", "end_tree_attempts",
    },
    "cutting": {"claim", "record_steps", "add_waits", "delete_waits_by_key", "return_messages", "take_messages"},
    "flowing": {
        "claim", "add_step_permits", "delete_step_permits", "add_checkpoints", "set_metadata", "set_values",
        "replace_unstarted", "add_runs", "add_keys", "add_children", "end_tree_attempts", "end_attempts",
    },
}  # fmt: skip
"""Statements at whose commit a worker must have been killed at least once; by default only by one of the tasks."""


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request, tmp_path):
    """Create a database for each concurrent process."""
    if request.param == "sqlite":
        yield [f"sqlite:///{tmp_path / f'stream{n}.db'}" for n in range(STREAMS)]
        return
    server = request.getfixturevalue("postgres_server_url")
    made = [create_database(server) for _ in range(STREAMS)]
    yield made
    for url in made:
        drop_database(server, database_of(url))


def fuzz(urls, processes, folder, task, mode, *, first=1, stride=1, statements=()):
    """Run all kill points in several processes and return their results."""
    folders = [folder / f"stream{n}" for n in range(STREAMS)]
    started = []
    for n, url in enumerate(urls):
        folders[n].mkdir()
        given = (url, folders[n], task, mode, first + n * stride, STREAMS * stride, *sorted(statements)[n::STREAMS])
        started.append(processes.start(APPS / "fuzz.py", *given))
    for process in started:
        assert process.wait(timeout=600) == 0, process.log
    return [json.loads(line) for folder in folders for line in (folder / "facts").read_text().splitlines()]


def check_point(task, facts):
    """Check the facts about one run and return the number of kills."""
    *killed, last = facts["codes"]
    assert killed == [-9] * len(killed)
    assert last == 0
    assert len(facts["places"]) == len(killed), "a worker died for another reason"
    *_, end = looks = facts["looks"]
    assert len(looks) == len(killed) + 1
    check_end(task, end)
    assert set(end["finished"]) >= set(EFFECTS[task]), "an effect is not recorded"
    counts = [Counter(name for name, _ in look["effects"]) for look in looks]
    assert counts[-1].keys() == set(EFFECTS[task])
    keys = {(name, key) for name, key in end["effects"]}
    assert len(keys) == len(EFFECTS[task]), "the idempotency key of a step changed"
    assert max(counts[0].values(), default=1) == 1
    for before, after, count, more in zip(looks, looks[1:], counts, counts[1:], strict=False):
        for name in EFFECTS[task]:
            grown = more[name] - count[name]
            if name in before["finished"]:
                assert grown == 0, f"{name} was recorded, and ran again"
            elif name in after["finished"]:
                assert grown == 1, f"{name} ran {grown} times on one worker"
            else:
                assert grown <= 1
    return len(killed)


def check_end(task, end):
    states = Counter((row[1], row[2]) for row in end["runs"])
    assert Counter(row[1] for row in end["runs"]) == RUNS[task], (
        "a child or an independent run was created twice, or not at all"
    )
    [(state, result, error)] = [row[2:5] for row in end["runs"] if row[1] == task]
    assert end["rows"] == ROWS.get(task, ["t1", "t2"])
    if task.startswith("undoing"):
        assert state == "failed"
        assert "enough" in json.loads(error)["message"]
        assert states["sleeper", "cancelled"] == 1
        undone = list(dict.fromkeys(name for name, _ in end["effects"] if name.startswith("undo-")))
        assert undone == UNDOING[4:], "not in reverse order"
    else:
        assert (state, json.loads(result)) == ("done", RESULTS[task])
        skipped = {("child", "skipped")} if task == "graphing" else set()
        assert {each for each in states if each[1] != "done"} == skipped
        assert end["chunks"] == (1 if task == "everything" else 0)
        if task == "flowing":
            [mark] = {json.loads(row[6])["mark"] for row in end["runs"] if row[1] == task}
            assert (end["metadata"], end["values"]) == ({"mark": mark, "stage": "sent"}, {"stage": "sent"})
            assert end["permits"] == [], "a step still holds permits"


def places(points):
    return {name for facts in points for line in facts["places"] for name in line.split()[2].split(",")}


@pytest.fixture
def slow(request):
    return request.config.getoption("--slow")


@pytest.mark.parametrize(
    ("task", "mode"),
    [
        ("everything", "before"),
        ("everything", "after"),
        ("undoing", "before"),
        ("graphing", "after"),
        ("cutting", "before"),
        ("flowing", "after"),
        ("plainly", "before"),
        ("undoing_plainly", "after"),
        pytest.param("undoing", "after", marks=pytest.mark.slow),
        pytest.param("graphing", "before", marks=pytest.mark.slow),
        pytest.param("cutting", "after", marks=pytest.mark.slow),
        pytest.param("flowing", "before", marks=pytest.mark.slow),
        pytest.param("plainly", "after", marks=pytest.mark.slow),
        pytest.param("undoing_plainly", "before", marks=pytest.mark.slow),
    ],
)
def test_a_worker_killed_at_any_commit_does_not_change_the_outcome(urls, processes, tmp_path, slow, capsys, task, mode):
    """Kill at each commit with --slow, else at every thirteenth.

    Also at each kind of commit; by default before it on SQLite, and after it on PostgreSQL.
    """
    first, stride = (1, 1) if slow else (1 if mode == "after" else 5, 13)
    wanted = PLACES[task] if slow or task == "everything" else PLACES[task] - PLACES["everything"]
    if not slow and task == "everything" and (mode == "before") != urls[0].startswith("sqlite"):
        wanted = set()
    points = fuzz(urls, processes, tmp_path, task, mode, first=first, stride=stride, statements=wanted)
    kills = sum(check_point(task, facts) for facts in points)
    counted = [facts for facts in points if "-p0" in facts["mark"]]
    assert sum(not facts["places"] for facts in counted) == STREAMS, "every point except the last of a series is a kill"
    assert kills >= ENOUGH[task] / stride + len(wanted)
    assert places(points) >= wanted
    if slow:
        with capsys.disabled():
            print(f"\n{task}, {mode} each commit: {kills} kills")  # noqa: T201


@pytest.mark.parametrize(("task", "first"), [("everything", 4), ("undoing", 4), ("graphing", 3)])
def test_workers_that_each_die_after_a_few_commits_finish_all_runs(urls, processes, tmp_path, slow, task, first):
    points = fuzz(urls, processes, tmp_path, task, "each", first=first, stride=1 if slow else 17)
    kills = sum(check_point(task, facts) for facts in points)
    assert max(len(facts["codes"]) for facts in points) > 3, "several workers died, one after the other"
    assert kills >= len(points) - STREAMS + 2
