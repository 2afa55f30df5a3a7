"""Graphs under concurrent changes: whichever commits first, only legal outcomes result.

Two connections race again and again, with --slow a thousand times and more. Afterwards the counters of all graphs are
compared with what they count. On PostgreSQL, one transaction is then stopped midway and the other shown to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast.errors import KeyConflict, RunFinished
from holdfast.store.graphs import GateOutcome
from holdfast.store.rows import NewGraph
from tests.store.test_journal_races import stopped
from tests.support.graph_world import Made, asking, check_graphs, gate, graph_run, nested, node, submit
from tests.support.meeting import Meeting
from tests.support.races import Background
from tests.support.world import CANCELLED, OVERDUE, SECOND, World, end_of

FEW, MANY = 15, 1_000
AT_ONCE = 100  # graphs that are made before their races begin
COMPLETED = GateOutcome("done", '"yes"', None, "me")


@pytest.fixture
def world(world):
    world.session("w", lease=1e8)
    return world


@pytest.fixture
def times(request):
    return MANY if request.config.getoption("--slow") else FEW


def rounds(times: int) -> Iterator[int]:
    """Yield how many graphs to create at a time."""
    for start in range(0, times, AT_ONCE):
        yield min(AT_ONCE, times - start)


def claimed(world, count, tasks=("task",)):
    """Claims by id."""
    found = {}
    while len(found) < count:
        claims = world.claim("w", count - len(found), tasks)
        assert claims, f"only {len(found)} of {count} could be claimed"
        found |= {claim.id: claim for claim in claims}
    return found


def ending(claim, **more):
    return lambda store: store.attempts.end("w", [end_of(claim, in_tree=True, **more)])


def end_all(world, claims):
    for claim in claims:
        assert world.end("w", claim, in_tree=True)


def states(world, graphs: list[Made], *names: str) -> Counter[tuple[str, ...]]:
    """Count each combination of states of the graph and these nodes."""
    all_states = dict(world.sql("select id, state from {schema}runs"))
    by_id = {str(id): state for id, state in all_states.items()}
    return Counter((by_id[graph.id], *(by_id[graph.nodes[name]] for name in names)) for graph in graphs)


def test_concurrent_ends_of_the_last_two_dependencies_release_the_node_once(world, times):
    times = times * 10 if times == MANY else times
    graphs = []
    with Meeting(world) as meeting:
        for size in rounds(times):
            some = [submit(world, node(world, "a"), node(world, "b"), node(world, "c", "a", "b", task="last"))
                    for _ in range(size)]  # fmt: skip
            claims = claimed(world, 2 * size)
            for graph in some:
                one, other = (claims[graph.nodes[name]] for name in "ab")
                assert meeting.of(ending(one), ending(other)) == [{end_of(one).claim}, {end_of(other).claim}]
            released = claimed(world, size, ["last"])
            assert released.keys() == {graph.nodes["c"] for graph in some}
            assert world.claim("w", 1, ["last"]) == []
            end_all(world, released.values())
            graphs += some
    assert states(world, graphs, "c") == {("done", "done"): times}
    assert check_graphs(asking(world)) == {"done": 3 * times}


def test_a_cancel_during_a_release_leaves_nothing_running(world, times):
    graphs = []
    with Meeting(world) as meeting:
        for size in rounds(times):
            some = [submit(world, node(world, "a"), node(world, "b", "a", task="next")) for _ in range(size)]
            claims = claimed(world, size)
            for graph in some:
                claim = claims[graph.nodes["a"]]
                ended, cancelled = meeting.of(
                    ending(claim), lambda store, id=graph.id: store.actions.cancel(id, CANCELLED)
                )
                assert cancelled is True
                assert world.state(claim.id) == ("done" if ended else "cancelled")
            graphs += some
    found = states(world, graphs, "a", "b")
    assert found.keys() <= {("cancelled", "done", "cancelled"), ("cancelled", "cancelled", "cancelled")}
    assert world.claim("w", 1, ["next"]) == []
    check_graphs(asking(world))


def test_a_gate_completed_at_its_timeout_has_one_outcome(world, times):
    graphs = []
    with Meeting(world) as meeting:
        for size in rounds(times):
            some = [submit(world, gate("ok", timeout=(at + 1) * SECOND), node(world, "b", "ok")) for at in range(size)]
            for graph in some:
                world.clock.advance(1)
                was_this, timed_out = meeting.of(
                    lambda store, id=graph.id: store.graphs.conclude_gate(id, "ok", COMPLETED),
                    lambda store: store.timers.fail_overdue(OVERDUE),
                )
                if was_this is True:
                    assert timed_out == []
                else:
                    assert isinstance(was_this, KeyConflict)
                    assert timed_out == [graph.nodes["ok"], graph.id]
            graphs += some
    found = states(world, graphs, "ok", "b")
    assert found.keys() <= {("waiting", "done", "ready"), ("failed", "failed", "skipped")}
    check_graphs(asking(world))


def test_nodes_appended_while_their_graph_ends_are_run_or_refused(world, times):
    graphs, refused = [], 0
    with Meeting(world) as meeting:
        for size in rounds(times):
            some = [submit(world, node(world, "a")) for _ in range(size)]
            claims = claimed(world, size)
            for graph in some:
                more = NewGraph([node(world, "b", "a", task="next")])
                _, appended = meeting.of(
                    ending(claims[graph.nodes["a"]]),
                    lambda store, id=graph.id, more=more: store.graphs.append(id, "key", "digest", more, ["a"]),
                )
                assert appended is None or isinstance(appended, RunFinished)
                refused += appended is not None
            graphs += some
    assert states(world, graphs, "a") == +Counter({("done", "done"): refused, ("waiting", "done"): times - refused})
    check_graphs(asking(world))
    if refused < times:
        end_all(world, claimed(world, times - refused, ["next"]).values())
    assert states(world, graphs) == {("done",): times}
    assert check_graphs(asking(world)) == +Counter({"done": 2 * times - refused})
    assert world.rows("keys") == times - refused


def test_a_retry_that_meets_the_late_worker_of_a_node_runs_it_anew(world, times):
    graphs = []
    with Meeting(world) as meeting:
        for number, size in enumerate(rounds(times)):
            task = f"task {number}"  # those of earlier rounds are ready again
            some = [submit(world, node(world, "a", task=task), node(world, "b", "a")) for _ in range(size)]
            claims = claimed(world, size, [task])
            for graph in some:
                late = claims[graph.nodes["a"]]
                world.store.actions.cancel(graph.id, CANCELLED)

                def end_late(store, late=late):
                    counted = store.attempts.end("w", [end_of(late, in_tree=True)])
                    return counted, store.attempts.release("w", [(late.id, late.fence)])

                retried, (counted, let_go) = meeting.of(lambda store, id=graph.id: store.actions.retry(id), end_late)
                assert (retried, counted, let_go) == (True, set(), 1)
                row = world.row(late.id)
                assert (row["state"], row["held"], row["session"]) == ("ready", None, None)
            graphs += some
    assert states(world, graphs, "a", "b") == {("waiting", "ready", "blocked"): times}
    check_graphs(asking(world))


def test_concurrent_ends_of_the_last_two_nodes_end_a_nested_graph_once(world, times):
    graphs = []
    with Meeting(world) as meeting:
        for size in rounds(times):
            some = [
                submit(world, nested("in", node(world, "x"), node(world, "y")), node(world, "z", "in", task="last"))
                for _ in range(size)
            ]
            claims = claimed(world, 2 * size)
            for graph in some:
                one, other = (claims[graph.nodes[f"in/{name}"]] for name in "xy")
                assert meeting.of(ending(one), ending(other)) == [{end_of(one).claim}, {end_of(other).claim}]
                assert world.kinds(graph.nodes["in"]) == ["done"]
            end_all(world, claimed(world, size, ["last"]).values())
            graphs += some
    assert states(world, graphs, "in", "z") == {("done", "done", "done"): times}
    assert check_graphs(asking(world)) == {"done": 4 * times}


def test_the_same_graph_submitted_by_many_at_once_is_one_run(world, times):
    callers = 16

    def submitting(key):
        run = graph_run(key=key, digest="same")
        graph = NewGraph([node(world, "a"), gate("g", "a"), nested("in", node(world, "x"), needs=("g",))])
        return lambda store: store.graphs.submit(run, graph)

    with Meeting(world, callers) as meeting:
        for number in range(times):
            ids = meeting.of(*(submitting(f"key {number}") for _ in range(callers)))
            assert len(set(ids)) == 1, ids
    assert world.rows("runs") == 4 * times, "the nodes of the nested graph are made when it begins"
    assert check_graphs(asking(world)) == {"ready": times, "blocked": 2 * times}


# One stopped in the middle


@pytest.fixture
def on_postgres(postgres_url):
    world = World(postgres_url)
    world.session("w")
    yield world
    world.close()


@pytest.mark.parametrize("before", ["end_tree_attempts", "decrement_graphs", "decrement_nodes"])
def test_an_end_waits_for_the_end_of_another_node_of_its_graph(on_postgres, before):
    world = on_postgres
    graph = submit(world, node(world, "a"), node(world, "b"), node(world, "c", "a", "b", task="last"))
    claims = claimed(world, 2)
    first = stopped(world, ending(claims[graph.nodes["a"]]), before)
    second = Background(world, lambda: world.end("w", claims[graph.nodes["b"]], in_tree=True))
    assert first.result() == {end_of(claims[graph.nodes["a"]]).claim}
    assert second.result() is True
    assert world.state(graph.nodes["c"]) == "ready"
    assert check_graphs(asking(world)) == {"done": 2, "ready": 1}


@pytest.mark.parametrize("before", ["decrement_nodes", "release_nodes"])
def test_a_cancel_that_waited_for_a_release_cancels_the_released_nodes(on_postgres, before):
    world = on_postgres
    graph = submit(world, node(world, "a"), node(world, "b", "a"))
    claims = claimed(world, 1)
    first = stopped(world, ending(claims[graph.nodes["a"]]), before)
    second = Background(world, lambda: world.store.actions.cancel(graph.id, CANCELLED))
    assert first.result() == {end_of(claims[graph.nodes["a"]]).claim}
    assert second.result() is True
    assert states(world, [graph], "a", "b") == {("cancelled", "done", "cancelled"): 1}
    check_graphs(asking(world))


def test_the_end_of_a_nested_node_waits_for_what_happens_to_the_graph_above(on_postgres):
    world = on_postgres
    graph = submit(world, nested("in", node(world, "x")), node(world, "z", "in", task="last"))
    claims = claimed(world, 1)
    cancel = stopped(world, lambda store: store.actions.cancel(graph.id, CANCELLED), "lock_unfinished_children")
    late = Background(world, lambda: world.end("w", claims[graph.nodes["in/x"]], in_tree=True))
    assert cancel.result() is True
    assert late.result() is False
    assert states(world, [graph], "in", "in/x", "z") == {("cancelled",) * 4: 1}
    check_graphs(asking(world))


def test_a_gate_of_a_graph_that_ends_meanwhile_is_refused(on_postgres):
    world = on_postgres
    graph = submit(world, gate("ok"), node(world, "b", "ok"))
    cancel = stopped(world, lambda store: store.actions.cancel(graph.id, CANCELLED), "lock_unfinished_children")
    late = Background(world, lambda: world.store.graphs.conclude_gate(graph.id, "ok", COMPLETED))
    assert cancel.result() is True
    with pytest.raises(RunFinished):
        late.result()
    check_graphs(asking(world))
