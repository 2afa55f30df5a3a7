"""The audit log: which operations are in it, with which outcome, and how long."""

from __future__ import annotations

import inspect
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.control.audit import acting
from holdfast.errors import ConfigError
from holdfast.model.filters import RunFilter
from holdfast.store.audit import MAX_SCANNED
from holdfast.store.module import MAX_BATCH_ROWS

AUDITED = {
    "runs": {"cancel", "retry", "update", "pause", "resume", "fork", "send", "resend"},
    "graphs": {"complete", "fail"},
    "gate_links": {"create", "revoke"},
    "events": {"emit", "clear"},
    "topics": {"publish"},
    "interaction": {"ask"},
    "queues": {"pause", "resume"},
    "pauses": {"pause", "resume"},
    "schedules": {"pause", "resume", "run", "backfill", "delete"},
    "limits": {"set", "reset"},
    "budgets": {"set", "reset"},
    "upkeep": {"prune"},
    "tokens": {"create", "revoke"},
}
"""The operations that are marked. Bulk actions, decisions by links, sign-ins and new runs record themselves."""
CHANGING = {verb for verbs in AUDITED.values() for verb in verbs} | {"change", "add", "remove", "enqueue", "edit"}
"""How operations that change something are called."""
RECORD_THEMSELVES = {"bulk": {"cancel", "retry", "prune"}, "gate_links": {"complete"}, "logins": {"create"}}


def test_every_operation_that_changes_something_is_recorded(control):
    for subject, operations in vars(control).items():
        if not subject.startswith("_"):
            named = dict(inspect.getmembers(type(operations), callable))
            assert {name for name, each in named.items() if hasattr(each, "audited")} == AUDITED.get(subject, set())
            changing = CHANGING & named.keys() - RECORD_THEMSELVES.get(subject, set())
            assert (subject, changing - AUDITED.get(subject, set())) == (subject, set())


def test_entries_say_who_did_what_and_what_came_of_it(control):
    with acting("ada", "dashboard", "10.0.0.7"):
        control.queues.pause(["mail", "bulk"])
        control.queues.pause(["mail"])
        control.pauses.pause("tenant", ["acme"], "grace")
        with pytest.raises(ConfigError):
            control.limits.set("gpu", concurrency=3)
    entries = control.audit.page().entries
    assert [(each.by, each.action, each.subject, each.outcome) for each in entries] == [
        ("ada", "set limit", "gpu", "refused"),
        ("grace", "pause tenant", "acme", "done"),
        ("ada", "pause queue", "mail", "unchanged"),
        ("ada", "pause queue", "bulk, mail", "done"),
    ]
    assert {(each.via, each.client) for each in entries} == {("dashboard", "10.0.0.7")}
    assert entries[0].detail["concurrency"] == 3
    assert "does not exist" in entries[0].detail["error"]


def test_payloads_and_arguments_are_left_out(harness, control):
    run = UUID(harness.add("shop.charge"))
    control.runs.send(run, "topic", {"card": "4111"}, "ada")
    control.events.emit("paid", {"card": "4111"}, "acme")
    control.runs.update(run, args=["4111"], tags=["x" * 180, "y" * 180], by="ada")
    found = control.audit.page().entries
    assert [(each.action, each.subject) for each in found] == [
        ("change run", str(run)), ("emit event", "paid"), ("send message", str(run)),
    ]  # fmt: skip
    assert "4111" not in str(found)
    assert found[1].detail == {"tenant": "acme"}
    assert len(found[0].detail["tags"]) < 400


def test_application_traffic_of_the_api_is_not_recorded(harness, control):
    run = UUID(harness.add("shop.charge"))
    with acting("shop", "api"):
        control.runs.send(run, "topic")
        control.events.emit("paid")
        control.runs.cancel(run, "twice")
    assert [(each.action, each.detail) for each in control.audit.page().entries] == [
        ("cancel run", {"reason": "twice"})
    ]


def test_a_bulk_action_is_one_entry_with_its_filter_and_count(harness, control):
    for _ in range(3):
        harness.add("shop.charge")
    filters = RunFilter(task="shop.charge")
    list(control.bulk.cancel(filters, reason="wrong", by="ada"))
    list(control.bulk.cancel(filters, by="ada"))
    unchanged, done = control.audit.page().entries
    assert (done.by, done.action, done.outcome) == ("ada", "cancel runs", "done")
    assert done.detail == {"filter": {"task": "shop.charge"}, "reason": "wrong", "changed": 3}
    assert unchanged.outcome == "unchanged"


def test_an_action_that_did_not_end_has_no_outcome(control, monkeypatch):
    """As if the process had been killed: nothing after the insertion runs."""
    monkeypatch.setattr(type(control._store.audit), "finish", lambda *_: None)
    control.queues.pause(["mail"])
    (entry,) = control.audit.page().entries
    assert entry.outcome is None
    monkeypatch.undo()


def test_an_error_of_the_program_counts_as_failed(control, monkeypatch):
    monkeypatch.setattr(type(control._store.queues), "pause", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        control.queues.pause(["mail"])
    (entry,) = control.audit.page().entries
    assert (entry.outcome, entry.detail) == ("failed", {"error": "ZeroDivisionError: division by zero"})


def test_entries_are_filtered_and_paged(control, monkeypatch):
    for name in "abcdef":
        with acting("ada" if name < "d" else "grace", "cli"):
            control.queues.pause([name])
    by = control.audit.page(by="ada", limit=2)
    assert [each.subject for each in by.entries] == ["c", "b"]
    rest = control.audit.page(by="ada", limit=2, after=by.after)
    assert ([each.subject for each in rest.entries], rest.after) == (["a"], None)
    assert [each.subject for each in control.audit.page(subject="e", action="pause queue").entries] == ["e"]
    assert control.audit.page(outcome="failed").entries == []
    at = by.entries[0].at
    assert {each.subject for each in control.audit.page(since=at).entries} >= set("cdef")
    assert control.audit.page(until=at - timedelta(days=1)).entries == []
    with pytest.raises(ConfigError, match="unknown outcome"):
        control.audit.page(outcome="gone")
    monkeypatch.setattr("holdfast.store.audit.MAX_SCANNED", 2)
    partial = control.audit.page(by="ada")
    assert (partial.entries, partial.partial) == ([], True)
    assert [each.subject for each in control.audit.page(by="ada", after=partial.after).entries] == ["c"]
    assert MAX_SCANNED > MAX_BATCH_ROWS


def test_old_entries_are_deleted(harness, control):
    control.queues.pause(["mail"])
    day = 86_400_000_000
    harness.store.audit.prune(day)
    assert len(control.audit.page().entries) == 1
    harness.store.audit.prune(0)
    assert control.audit.page().entries == []
