"""Operators' view of schedules and triggers."""

from __future__ import annotations

from uuid import UUID

import pytest

from holdfast.errors import ConfigError
from holdfast.model.clock import to_datetime
from holdfast.policy.schedule_timing import Timing
from holdfast.store.schedule_definitions import DeclaredSchedule, ScheduleRules
from holdfast.store.schedules import PollResult
from tests.support.store_harness import SECOND, StoreHarness

HOUR = 3600 * SECOND


@pytest.fixture
def declared(harness: StoreHarness) -> None:
    """A schedule, one that ends soon, and a trigger."""
    harness.store.schedules.declare(
        "shop",
        [
            DeclaredSchedule(
                "nightly",
                Timing(cron="0 3 * * *", tz="Asia/Tokyo"),
                ScheduleRules("all", "skip", SECOND),
                harness.new("report"),
            ),
            DeclaredSchedule(
                "soon over",
                Timing(every=HOUR, end=harness.clock.now + HOUR),
                ScheduleRules("latest"),
                harness.new("report"),
            ),
            DeclaredSchedule("files", Timing(every=30 * SECOND)),
        ],
    )


def test_list_shows_all_fields(control, harness, clock, declared):
    files, nightly, _ = control.schedules.list()
    assert (files.name, files.kind, files.state, files.when, files.task) == (
        "files",
        "trigger",
        "on",
        "every 30 s",
        None,
    )
    assert (files.every, files.tz, files.catch_up, files.last_poll) == (30, None, None, None)
    assert (nightly.name, nightly.kind, nightly.app, nightly.task) == ("nightly", "schedule", "shop", "report")
    assert (nightly.when, nightly.cron, nightly.tz) == ("At 03:00 every day", "0 3 * * *", "Asia/Tokyo")
    assert (nightly.catch_up, nightly.overlap, nightly.jitter) == ("all", "skip", 1)
    assert (nightly.next_at, nightly.last_run) == (to_datetime(clock.now + 10 * HOUR), None)


def test_states(control, harness, clock, declared):
    clock.advance(3600)
    (made,) = harness.store.schedules.fire().created
    control.schedules.pause(["nightly"])
    assert [each.state for each in control.schedules.list()] == ["on", "paused", "over"]
    assert [each.next_at is None for each in control.schedules.list()] == [False, True, True]
    last = control.schedules.list()[2].last_run
    assert last is not None
    assert (str(last.id), last.slot, last.state) == (made.run, to_datetime(clock.now), "ready")
    harness.store.schedules.declare("shop", [])
    assert {each.state for each in control.schedules.list()} == {"orphaned"}


def test_details_of_a_schedule(control, harness, clock, declared):
    asked = control.schedules.run("nightly")
    clock.advance(10 * 3600)
    harness.store.schedules.fire()
    details = control.schedules.show("nightly")
    assert [slot.hour for slot in details.coming] == [18] * 5
    (run,) = details.runs
    assert (run.id, run.asked, run.state) == (asked, True, "ready")
    assert details.schedule.passed_at == to_datetime(clock.now), "the run that was asked for is unfinished"
    assert control.schedules.show("soon over").runs[0].asked is False
    harness.sql("delete from {schema}runs")
    assert control.schedules.show("nightly").runs[0].state is None


def test_details_of_a_trigger(control, harness, clock, declared):
    for number, error in ((1, None), (2, '{"code":"error","type":"OSError","message":"gone"}')):
        harness.store.triggers.acquire_due("a", {"files": (SECOND, SECOND)})
        harness.store.triggers.finish_poll("a", "files", number, PollResult(SECOND // 2, 3, 2, error))
        clock.advance(1)
    details = control.schedules.show("files")
    assert [(poll.found, poll.made, str(poll.error), poll.took) for poll in details.polls] == [
        (3, 2, "OSError: gone", 0.5),
        (3, 2, "None", 0.5),
    ]
    assert details.schedule.last_poll is not None
    assert str(details.schedule.last_poll.error) == "OSError: gone"
    assert (details.coming, details.runs) == ([], [])


def test_pause_resume_and_run(control, harness, clock, declared):
    assert control.schedules.pause(["nightly", "files"]) == {"nightly", "files"}
    assert control.schedules.pause(["nightly"]) == set()
    id = control.schedules.run("nightly")
    assert isinstance(id, UUID)
    assert harness.state(str(id)) == "ready"
    with pytest.raises(ConfigError, match="trigger 'files' is paused"):
        control.schedules.run("files")
    assert control.schedules.resume(["nightly", "files"]) == {"nightly", "files"}
    assert control.schedules.run("files") is None


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "show"])
def test_unknown_names_are_reported_and_change_nothing(control, harness, declared, verb):
    call = getattr(control.schedules, verb)
    wrong = "nightlly" if verb in ("run", "show") else ["nightly", "nightlly"]
    with pytest.raises(ConfigError, match="schedule 'nightlly' does not exist; known schedules: nightly"):
        call(wrong)
    assert {each.state for each in control.schedules.list()} == {"on"}
    harness.sql("delete from {schema}schedules")
    with pytest.raises(ConfigError, match="no schedule exists"):
        call(wrong)


def test_declarations_of_newer_releases_are_shown_unparsed(control, harness, declared):
    harness.sql("update {schema}schedules set timing = :said, rules = :said", said='{"moon":"full"}')
    assert {each.when for each in control.schedules.list()} == {'{"moon":"full"}'}
    assert control.schedules.show("nightly").coming == []
    for verb in (control.schedules.run, lambda name: control.schedules.resume([name])):
        with pytest.raises(ConfigError, match="declared by a newer release: upgrade"):
            verb("nightly")
