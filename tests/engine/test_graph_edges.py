"""Edge cases of graphs: outputs with defaults only, reserved queue names, messages to graphs."""

from __future__ import annotations

import pytest

from holdfast import Graph, Holdfast, Retry
from holdfast.errors import ConfigError, GraphError
from tests.support.durable import drain


def test_an_output_with_a_default_lets_a_node_run_after_any_outcome(database_url):
    app = Holdfast(database_url)

    @app.task(name="one")
    def one(n: int) -> int:
        return n + 1

    @app.task(name="bad", retry=Retry(max_attempts=1))
    def bad(n: int) -> int:
        raise ValueError(f"no {n}")

    g = Graph("plan")
    broken = g.add(bad, 1, name="broken")
    fine = g.add(one, 1, name="fine")
    never = g.add(one, 1, when=fine.output > 5, name="never")
    g.add(one, broken.output.default(10), name="after failure")
    g.add(one, never.output.default(20), name="after skip")
    g.add(one, fine.output.default(30), name="after success")
    run = app.submit(g)
    drain(app)
    results = {name: info.result for name, info in run.nodes().items() if name.startswith("after")}
    assert results == {"after failure": 11, "after skip": 21, "after success": 3}
    app.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.task(lambda: None, name="x", queue="$graph"),
        lambda app: app.remote("x", queue="$graph"),
        lambda app: app.remote("x").options(queue="$graph"),
        lambda app: app.worker(queues=["$graph"]),
    ],
)
def test_queue_names_that_start_with_a_dollar_are_reserved(sqlite_url, use):
    with Holdfast(sqlite_url) as app, pytest.raises(ConfigError, match=r"must not start with \$"):
        use(app)


def test_graphs_and_gates_receive_no_messages(database_url):
    with Holdfast(database_url) as app:
        g = Graph("plan")
        g.gate("gate")
        run = app.submit(g)
        with pytest.raises(GraphError, match="is a graph, which receives no messages"):
            run.send("letters")
        with pytest.raises(GraphError, match="is a gate, which receives no messages"):
            app.get_run(run.nodes()["gate"].id).send("letters")
