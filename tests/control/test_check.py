"""Replays of unfinished runs with changed code: reported differences, no side effects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, SyncContext
from tests.support.durable import drain
from tests.support.ledger import Ledger
from tests.support.replay_versions import (
    Deployed,
    Effects,
    act,
    begin,
    block,
    dump,
    found,
    walk,
    walk_and_block,
    walk_and_cut,
    walk_and_fall,
    walk_and_raise,
    walk_and_wait_by_itself,
    walk_in_circles,
    walk_in_two_ways,
    walk_no_more,
    walk_otherwise,
    walk_renamed,
    walk_renamed_later,
    walk_replaced,
    walk_to_dusk,
    walk_to_the_end,
    walk_with_a_condition,
    walk_with_arguments,
    walk_with_more,
    walk_with_renamed_results,
    walk_with_results,
    walk_with_two_more,
    walk_without_second,
    walk_without_undo,
)


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    Effects.ledger = Ledger(tmp_path / "ledger")
    Effects.unblock.clear()
    yield Effects.ledger
    Effects.unblock.set()


@pytest.mark.parametrize(("begun", "body"), [(walk, walk), (walk, walk_renamed_later), (walk_and_cut, walk_and_cut)])
def test_unchanged_run_is_only_counted(database_url, begun, body):
    begin(database_url, begun)
    with Deployed(database_url, body) as new:
        report = new.check()
    assert (report.checked, report.same, report.different, report.unchecked) == (1, 1, [], [])


@pytest.mark.parametrize(
    ("body", "differences"),
    [
        (walk_with_more, [("added", "new", "harmless")]),
        (walk_with_two_more, [
            ("added", "look", "harmless"), ("added", "spawn child", "harmless"), ("added", "note", "harmless"),
            ("added", "sleep", "harmless"),
        ]),
        (walk_in_two_ways, [("added", "new", "harmless")]),
        (walk_otherwise, [("drift", "second", "repeats")]),
        (walk_renamed, [("renamed", "second", "repeats")]),
        (walk_replaced, [("instead", "second", "repeats")]),
        (walk_in_circles, [("instead", "second", "repeats"), ("wait", "event dawn", "blocked")]),
        (walk_and_raise, [("raised", "second", "blocked")]),
        (walk_and_fall, [("raised", "event dawn", "blocked")]),
        (walk_to_dusk, [("wait", "event dawn", "blocked")]),
        (walk_to_the_end, [("wait", "event dawn", "blocked")]),
        (walk_without_second, [("undo", "second", "blocked")]),
        (walk_without_undo, [("undo", "second", "blocked")]),
        (walk_with_arguments, [("arguments", "arguments", "blocked")]),
        (walk_no_more, [("not_durable", "task", "blocked")]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)  # fmt: skip
def test_differences_name_their_location_and_severity(database_url, body, differences):
    id = begin(database_url, walk)
    with Deployed(database_url, body) as new:
        report = new.check()
    (run,) = report.different
    assert (run.id, run.task, run.state) == (id, "walk", "waiting")
    assert [(finding.kind, finding.where, finding.severity) for finding in run.findings] == differences
    assert (report.checked, report.same) == (1, 0)
    assert run.severity == report.severity == differences[-1][2]


def test_what_depends_on_a_renamed_step_would_run_again_too(database_url, ledger):
    begin(database_url, walk_with_results)
    assert found(database_url, walk_with_results) == []
    with Deployed(database_url, walk_with_renamed_results) as new:
        (run,) = new.check().different
    assert [(finding.kind, finding.where, "may" in finding.text) for finding in run.findings] == [
        ("renamed", "first", False), ("drift", "second", True), ("drift", "third", True),
        ("drift", "spawn child", False), ("removed", "join child", False),
    ]  # fmt: skip
    assert ledger.lines() == ["act 1", "act 1", "act 1"]


def test_code_that_needs_the_result_of_a_new_step_cannot_be_checked(database_url):
    begin(database_url, walk)
    with Deployed(database_url, walk_with_a_condition) as new:
        report = new.check()
    (run,) = report.unchecked
    assert (report.severity, report.different) == ("unchecked", [])
    assert [(finding.kind, finding.where) for finding in run.findings] == [("unchecked", "second")]
    assert run.findings[0].text == (
        "is recorded, but the code does look first, and what follows can't be checked: the code needs the result of "
        "step look, which isn't recorded; it would run again if look is its new name"
    )


@pytest.mark.parametrize("body", [walk_and_wait_by_itself, walk_and_block])
def test_endless_replay_is_aborted(database_url, ledger, body):
    begin(database_url, walk)
    assert found(database_url, body, timeout=0.2) == [("timeout", "second")]
    assert "went on" not in ledger.lines()


@pytest.mark.parametrize(
    "body", [walk, walk_without_second, walk_with_two_more, walk_in_two_ways, walk_renamed, walk_and_raise]
)
def test_no_step_is_run_and_nothing_is_written(database_url, ledger, body):
    begin(database_url, walk)
    before, done = dump(database_url), ledger.lines()
    found(database_url, body)
    assert ledger.lines() == done == ["act 1", "act 2"]
    assert dump(database_url) == before


# Plain functions


def plain_walk(ctx: SyncContext) -> None:
    ctx.step(act, 1, name="first")
    ctx.step(act, 2, name="second")
    ctx.sleep(3600, name="night")


def plain_walk_without_first(ctx: SyncContext) -> None:
    try:
        ctx.step(act, 2, name="second")
        ctx.sleep(3600, name="night")
    finally:
        raise ValueError("of a finally, which every suspension runs")


def plain_walk_with_more(ctx: SyncContext) -> None:
    ctx.step(act, 1, name="first")
    ctx.step(act, 9, name="new")
    ctx.step(act, 2, name="second")


def plain_walk_renamed(ctx: SyncContext) -> None:
    ctx.step(act, 1, name="erster")
    ctx.step(act, 2, name="second")
    ctx.sleep(3600, name="night")


def plain_walk_with_a_condition(ctx: SyncContext) -> None:
    ctx.step(act, 1, name="first")
    if ctx.step(act, 2, name="look"):
        ctx.step(act, 2, name="second")
    ctx.sleep(3600, name="night")


def plain_walk_and_block(ctx: SyncContext) -> None:
    ctx.step(act, 1, name="first")
    block()


@pytest.mark.parametrize(
    ("body", "differences"),
    [
        (plain_walk, []),
        (plain_walk_without_first, [("removed", "first")]),
        (plain_walk_with_more, [("added", "new"), ("wait", "sleep night")]),
        (plain_walk_renamed, [("renamed", "first")]),
        (plain_walk_with_a_condition, [("unchecked", "second")]),
        (plain_walk_and_block, [("timeout", "second")]),
    ],
)
def test_plain_functions_are_replayed_too(database_url, ledger, body, differences):
    begin(database_url, plain_walk)
    assert found(database_url, body, timeout=0.2 if body is plain_walk_and_block else 20) == differences
    assert ledger.lines() == ["act 1", "act 2"]


# Branches and children


async def fan(ctx: Context, child: str) -> Any:
    app = Holdfast("sqlite:///:memory:")
    first, second = await asyncio.gather(ctx.step(act, 1, name="a"), ctx.step(act, 2, name="b"))
    values = await ctx.map(app.remote(child), [first, second])
    run = await ctx.spawn(app.remote(child), sum(values))
    total = await ctx.join(run)
    await ctx.step(act, total, name="total")
    await asyncio.gather(ctx.wait_for("dawn"), ctx.sleep(3600))


async def fan_with_another_total(ctx: Context, child: str) -> Any:
    app = Holdfast("sqlite:///:memory:")
    first, second = await asyncio.gather(ctx.step(act, 1, name="a"), ctx.step(act, 2, name="b"))
    values = await ctx.map(app.remote(child), [first, second])
    run = await ctx.spawn(app.remote(child), sum(values))
    total = await ctx.join(run)
    await ctx.step(act, total + 1, name="total")
    await asyncio.gather(ctx.wait_for("dawn"), ctx.sleep(3600))


async def fan_and_look(ctx: Context, child: str) -> Any:
    app = Holdfast("sqlite:///:memory:")
    await asyncio.gather(ctx.step(act, 1, name="a"), ctx.step(act, 2, name="b"))
    await ctx.map(app.remote(child), [1, 2])
    run = await ctx.spawn(app.remote(child), 30)
    await run.ainfo()


def test_branches_and_the_results_of_children_are_replayed(database_url, ledger):
    begin(database_url, fan, "child")
    assert found(database_url, fan) == []
    assert found(database_url, fan_with_another_total) == [("drift", "total")]
    assert ledger.counts()["act 300"] == 1


def test_code_that_reads_other_runs_is_checked_partly(database_url):
    begin(database_url, fan, "child")
    with Deployed(database_url, fan_and_look) as new:
        report = new.check()
    assert (report.same, report.different) == (0, [])
    assert "ainfo" in report.unchecked[0].findings[0].text


# Runs that undo


@pytest.mark.parametrize(
    ("body", "differences"),
    [
        (walk, []),
        (walk_and_fall, []),
        (walk_to_dusk, []),
        (walk_without_second, [("undo", "second")]),
        (walk_without_undo, [("undo", "second")]),
        (walk_with_more, [("undo", "second")]),
    ],
)
def test_a_run_that_undoes_needs_its_compensations_only(database_url, ledger, body, differences):
    id = begin(database_url, walk)
    with Deployed(database_url, None) as any_app:
        any_app.app.get_run(id).cancel()
        assert any_app.app.get_run(id).info().state == "undoing"
    assert found(database_url, body) == differences
    assert "undo 2" not in ledger.lines()


def test_a_step_whose_undo_was_taken_out_of_the_code_is_not_passed_over_when_undoing(database_url, ledger):
    id = begin(database_url, walk)
    with Deployed(database_url, walk_without_undo) as new:
        new.app.get_run(id).cancel()
        drain(new.app)
        info = new.app.get_run(id).info()
    assert (info.state, info.error.code) == ("failed", "undo")
    with Deployed(database_url, walk) as again:
        again.app.get_run(id).retry()
        drain(again.app)
        assert again.app.get_run(id).info().state == "cancelled"
    assert ledger.counts()["undo 2"] == 1
