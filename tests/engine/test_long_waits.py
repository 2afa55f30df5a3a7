"""Waits without a timeout that last long are reported."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Graph
from holdfast.control import Control
from holdfast.errors import ConfigError


def long_waits(findings):
    return [each for each in findings if each.code == "long_wait"]


def test_waits_without_a_timeout_that_last_long_are_notes(timed_app, clock, monkeypatch):
    @timed_app.task(name="order")
    async def order(ctx: Context, until: str, timeout: float | None = None) -> Any:
        return await ctx.wait_for(until, timeout=timeout)

    run, bounded = order.enqueue("paid"), order.enqueue("shipped", timeout=10 * 86_400)
    graph = Graph("release")
    graph.gate("approve")
    release = timed_app.submit(graph)
    timed_app.worker().drain(timeout=60)
    control = Control(timed_app.store, timed_app.registry)
    assert long_waits(control.doctor.examine().findings) == []
    clock.forward(86_400 + 60)
    found = long_waits(control.doctor.examine().findings)
    gate = release.nodes()["approve"].id
    assert {each.data["run"] for each in found} == {str(run.id), str(gate)}
    assert {each.what.partition(" for 1 d")[0] for each in found} == {
        "a run of order has waited for event paid", "a run of release has waited for approval approve",
    }  # fmt: skip
    assert found[0].level == "note"
    assert str(bounded.id) not in str(found)
    assert long_waits(control.doctor.glance(control.counts.by_lane())) == found
    assert long_waits(control.doctor.examine(long_wait=2 * 86_400).findings) == []
    monkeypatch.setenv("HOLDFAST_LONG_WAIT", "2d")
    assert long_waits(control.doctor.examine().findings) == []
    monkeypatch.setenv("HOLDFAST_LONG_WAIT", "soon")
    with pytest.raises(ConfigError, match="not a duration"):
        control.doctor.examine()
