"""`Keep`: how long finished runs are kept, and how apps and tasks pass it on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import ConfigError, Graph, Holdfast, Keep
from holdfast.model.clock import MICROS_PER_SECOND

DAY = 86_400 * MICROS_PER_SECOND


def do_nothing() -> None: ...


def kept(app):
    """How long the last run is kept after a success and after a failure, in days."""
    with app.transaction() as connection:
        done, failed = connection.execute("select keep, keep_failed from holdfast_runs order by seq")[-1]
    return done / DAY, (done if failed is None else failed) / DAY


def test_done_runs_are_kept_a_week_and_failed_ones_a_month():
    assert Keep() == Keep(done=timedelta(days=7), failed=timedelta(days=30))
    assert Keep(done=60).failed_micros == 30 * DAY
    assert Keep(failed=60).done_micros == 7 * DAY
    assert repr(Keep(done=60, failed=90)) == "Keep(done=60, failed=90)"


def test_it_is_immutable_and_hashable():
    with pytest.raises(AttributeError, match="Keep is immutable"):
        Keep().done_micros = 1
    assert len({Keep(), Keep(), Keep(done=1)}) == 2


@pytest.mark.parametrize("given", ["7d", -1, None])
def test_invalid_durations_are_rejected(given):
    for name in ("done", "failed"):
        with pytest.raises(ConfigError, match=f"Keep: {name}"):
            Keep(**{name: given})


@pytest.mark.parametrize("given", ["7d", -1, None, {"done": 1}])
def test_invalid_settings_are_rejected(given):
    with pytest.raises(ConfigError, match="keep"):
        Holdfast("sqlite:///:memory:", keep=given)


@pytest.mark.parametrize(
    ("of_app", "of_task", "days"),
    [
        (None, None, (7, 30)),
        (timedelta(days=2), None, (2, 2)),
        (Keep(done=timedelta(days=1), failed=timedelta(days=3)), None, (1, 3)),
        (None, timedelta(days=5), (5, 5)),
        (timedelta(days=2), Keep(done=timedelta(days=4), failed=timedelta(days=6)), (4, 6)),
    ],
)
def test_the_task_decides_then_the_app(of_app, of_task, days):
    with Holdfast("sqlite:///:memory:", **({} if of_app is None else {"keep": of_app})) as app:
        work = app.task(name="work", keep=of_task)(do_nothing)
        work.enqueue()
        assert kept(app) == days
        graph = Graph("graph")
        graph.add(work, name="node")
        app.submit(graph)
        assert kept(app) == days


def test_events_are_kept_as_long_as_any_run():
    with Holdfast("sqlite:///:memory:", keep=Keep(done=60, failed=90)) as app:
        assert app.worker()._components.settings.keep_events == 90 * MICROS_PER_SECOND
