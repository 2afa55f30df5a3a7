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
from tests.support.concurrent_calls import ConcurrentCalls
from tests.support.graph_harness import (
    SubmittedGraph,
    check_graphs,
    gate,
    graph_run,
    harness_query,
    nested,
    node,
    submit,
)
from tests.support.manual_transaction import BlockedCall
from tests.support.store_harness import CANCELLED, OVERDUE, SECOND, StoreHarness, end_of

FEW, MANY = 15, 1_000
AT_ONCE = 100  # graphs that are made before their races begin
COMPLETED = GateOutcome("done", '"yes"', None, "me")


@pytest.fixture
def harness(harness):
    harness.session("w", lease=1e8)
    return harness


@pytest.fixture
def times(request):
    return MANY if request.config.getoption("--slow") else FEW


def rounds(times: int) -> Iterator[int]:
    """Yield how many graphs to create at a time."""
    for start in range(0, times, AT_ONCE):
        yield min(AT_ONCE, times - start)


def claimed(harness, count, tasks=("task",)):
    """Claims by id."""
    found = {}
    while len(found) < count:
        claims = harness.claim("w", count - len(found), tasks)
        assert claims, f"only {len(found)} of {count} could be claimed"
        found |= {claim.id: claim for claim in claims}
    return found


def ending(claim, **more):
    return lambda store: store.attempts.end("w", [end_of(claim, in_tree=True, **more)])


def end_all(harness, claims):
    for claim in claims:
        assert harness.end("w", claim, in_tree=True)


def states(harness, graphs: list[SubmittedGraph], *names: str) -> Counter[tuple[str, ...]]:
    """Count each combination of states of the graph and these nodes."""
    all_states = dict(harness.sql("select id, state from {schema}runs"))
    by_id = {str(id): state for id, state in all_states.items()}
    return Counter((by_id[graph.id], *(by_id[graph.nodes[name]] for name in names)) for graph in graphs)


def test_concurrent_ends_of_the_last_two_dependencies_release_the_node_once(harness, times):
    times = times * 10 if times == MANY else times
    graphs = []
    with ConcurrentCalls(harness) as concurrent:
        for size in rounds(times):
            some = [submit(harness, node(harness, "a"), node(harness, "b"), node(harness, "c", "a", "b", task="last"))
                    for _ in range(size)]  # fmt: skip
            claims = claimed(harness, 2 * size)
            for graph in some:
                one, other = (claims[graph.nodes[name]] for name in "ab")
                assert concurrent.run(ending(one), ending(other)) == [{end_of(one).claim}, {end_of(other).claim}]
            released = claimed(harness, size, ["last"])
            assert released.keys() == {graph.nodes["c"] for graph in some}
            assert harness.claim("w", 1, ["last"]) == []
            end_all(harness, released.values())
            graphs += some
    assert states(harness, graphs, "c") == {("done", "done"): times}
    assert check_graphs(harness_query(harness)) == {"done": 3 * times}


def test_a_cancel_during_a_release_leaves_nothing_running(harness, times):
    graphs = []
    with ConcurrentCalls(harness) as concurrent:
        for size in rounds(times):
            some = [submit(harness, node(harness, "a"), node(harness, "b", "a", task="next")) for _ in range(size)]
            claims = claimed(harness, size)
            for graph in some:
                claim = claims[graph.nodes["a"]]
                ended, cancelled = concurrent.run(
                    ending(claim), lambda store, id=graph.id: store.actions.cancel(id, CANCELLED)
                )
                assert cancelled is True
                assert harness.state(claim.id) == ("done" if ended else "cancelled")
            graphs += some
    found = states(harness, graphs, "a", "b")
    assert found.keys() <= {("cancelled", "done", "cancelled"), ("cancelled", "cancelled", "cancelled")}
    assert harness.claim("w", 1, ["next"]) == []
    check_graphs(harness_query(harness))


def test_a_gate_completed_at_its_timeout_has_one_outcome(harness, times):
    graphs = []
    with ConcurrentCalls(harness) as concurrent:
        for size in rounds(times):
            some = [
                submit(harness, gate("ok", timeout=(at + 1) * SECOND), node(harness, "b", "ok")) for at in range(size)
            ]
            for graph in some:
                harness.clock.advance(1)
                was_this, timed_out = concurrent.run(
                    lambda store, id=graph.id: store.graphs.conclude_gate(id, "ok", COMPLETED),
                    lambda store: store.timers.fail_overdue(OVERDUE),
                )
                if was_this is True:
                    assert timed_out == []
                else:
                    assert isinstance(was_this, KeyConflict)
                    assert timed_out == [graph.nodes["ok"], graph.id]
            graphs += some
    found = states(harness, graphs, "ok", "b")
    assert found.keys() <= {("waiting", "done", "ready"), ("failed", "failed", "skipped")}
    check_graphs(harness_query(harness))


def test_nodes_appended_while_their_graph_ends_are_run_or_refused(harness, times):
    graphs, refused = [], 0
    with ConcurrentCalls(harness) as concurrent:
        for size in rounds(times):
            some = [submit(harness, node(harness, "a")) for _ in range(size)]
            claims = claimed(harness, size)
            for graph in some:
                more = NewGraph([node(harness, "b", "a", task="next")])
                _, appended = concurrent.run(
                    ending(claims[graph.nodes["a"]]),
                    lambda store, id=graph.id, more=more: store.graphs.append(id, "key", "digest", more, ["a"]),
                )
                assert appended is None or isinstance(appended, RunFinished)
                refused += appended is not None
            graphs += some
    assert states(harness, graphs, "a") == +Counter({("done", "done"): refused, ("waiting", "done"): times - refused})
    check_graphs(harness_query(harness))
    if refused < times:
        end_all(harness, claimed(harness, times - refused, ["next"]).values())
    assert states(harness, graphs) == {("done",): times}
    assert check_graphs(harness_query(harness)) == +Counter({"done": 2 * times - refused})
    assert harness.rows("keys") == times - refused


def test_a_retry_that_meets_the_late_worker_of_a_node_runs_it_anew(harness, times):
    graphs = []
    with ConcurrentCalls(harness) as concurrent:
        for number, size in enumerate(rounds(times)):
            task = f"task {number}"  # those of earlier rounds are ready again
            some = [submit(harness, node(harness, "a", task=task), node(harness, "b", "a")) for _ in range(size)]
            claims = claimed(harness, size, [task])
            for graph in some:
                late = claims[graph.nodes["a"]]
                harness.store.actions.cancel(graph.id, CANCELLED)

                def end_late(store, late=late):
                    counted = store.attempts.end("w", [end_of(late, in_tree=True)])
                    return counted, store.attempts.release("w", [(late.id, late.fence)])

                retried, (counted, released) = concurrent.run(
                    lambda store, id=graph.id: store.actions.retry(id), end_late
                )
                assert (retried, counted, released) == (True, set(), 1)
                row = harness.row(late.id)
                assert (row["state"], row["held"], row["session"]) == ("ready", None, None)
            graphs += some
    assert states(harness, graphs, "a", "b") == {("waiting", "ready", "blocked"): times}
    check_graphs(harness_query(harness))


def test_concurrent_ends_of_the_last_two_nodes_end_a_nested_graph_once(harness, times):
    graphs = []
    with ConcurrentCalls(harness) as concurrent:
        for size in rounds(times):
            some = [
                submit(
                    harness, nested("in", node(harness, "x"), node(harness, "y")), node(harness, "z", "in", task="last")
                )
                for _ in range(size)
            ]
            claims = claimed(harness, 2 * size)
            for graph in some:
                one, other = (claims[graph.nodes[f"in/{name}"]] for name in "xy")
                assert concurrent.run(ending(one), ending(other)) == [{end_of(one).claim}, {end_of(other).claim}]
                assert harness.kinds(graph.nodes["in"]) == ["done"]
            end_all(harness, claimed(harness, size, ["last"]).values())
            graphs += some
    assert states(harness, graphs, "in", "z") == {("done", "done", "done"): times}
    assert check_graphs(harness_query(harness)) == {"done": 4 * times}


def test_the_same_graph_submitted_by_many_at_once_is_one_run(harness, times):
    callers = 16

    def submitting(key):
        run = graph_run(key=key, digest="same")
        graph = NewGraph([node(harness, "a"), gate("g", "a"), nested("in", node(harness, "x"), needs=("g",))])
        return lambda store: store.graphs.submit(run, graph)

    with ConcurrentCalls(harness, callers) as concurrent:
        for number in range(times):
            ids = concurrent.run(*(submitting(f"key {number}") for _ in range(callers)))
            assert len(set(ids)) == 1, ids
    assert harness.rows("runs") == 4 * times, "the nodes of the nested graph are made when it begins"
    assert check_graphs(harness_query(harness)) == {"ready": times, "blocked": 2 * times}


# One stopped in the middle


@pytest.fixture
def on_postgres(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.session("w")
    yield harness
    harness.close()


@pytest.mark.parametrize("before", ["end_tree_attempts", "decrement_graphs", "decrement_nodes"])
def test_an_end_waits_for_the_end_of_another_node_of_its_graph(on_postgres, before):
    harness = on_postgres
    graph = submit(harness, node(harness, "a"), node(harness, "b"), node(harness, "c", "a", "b", task="last"))
    claims = claimed(harness, 2)
    first = stopped(harness, ending(claims[graph.nodes["a"]]), before)
    second = BlockedCall(harness, lambda: harness.end("w", claims[graph.nodes["b"]], in_tree=True))
    assert first.result() == {end_of(claims[graph.nodes["a"]]).claim}
    assert second.result() is True
    assert harness.state(graph.nodes["c"]) == "ready"
    assert check_graphs(harness_query(harness)) == {"done": 2, "ready": 1}


@pytest.mark.parametrize("before", ["decrement_nodes", "release_nodes"])
def test_a_cancel_that_waited_for_a_release_cancels_the_released_nodes(on_postgres, before):
    harness = on_postgres
    graph = submit(harness, node(harness, "a"), node(harness, "b", "a"))
    claims = claimed(harness, 1)
    first = stopped(harness, ending(claims[graph.nodes["a"]]), before)
    second = BlockedCall(harness, lambda: harness.store.actions.cancel(graph.id, CANCELLED))
    assert first.result() == {end_of(claims[graph.nodes["a"]]).claim}
    assert second.result() is True
    assert states(harness, [graph], "a", "b") == {("cancelled", "done", "cancelled"): 1}
    check_graphs(harness_query(harness))


def test_the_end_of_a_nested_node_waits_for_what_happens_to_the_graph_above(on_postgres):
    harness = on_postgres
    graph = submit(harness, nested("in", node(harness, "x")), node(harness, "z", "in", task="last"))
    claims = claimed(harness, 1)
    cancel = stopped(harness, lambda store: store.actions.cancel(graph.id, CANCELLED), "lock_unfinished_children")
    late = BlockedCall(harness, lambda: harness.end("w", claims[graph.nodes["in/x"]], in_tree=True))
    assert cancel.result() is True
    assert late.result() is False
    assert states(harness, [graph], "in", "in/x", "z") == {("cancelled",) * 4: 1}
    check_graphs(harness_query(harness))


def test_a_gate_of_a_graph_that_ends_meanwhile_is_refused(on_postgres):
    harness = on_postgres
    graph = submit(harness, gate("ok"), node(harness, "b", "ok"))
    cancel = stopped(harness, lambda store: store.actions.cancel(graph.id, CANCELLED), "lock_unfinished_children")
    late = BlockedCall(harness, lambda: harness.store.graphs.conclude_gate(graph.id, "ok", COMPLETED))
    assert cancel.result() is True
    with pytest.raises(RunFinished):
        late.result()
    check_graphs(harness_query(harness))
