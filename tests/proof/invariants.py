"""The invariants of the simulation, checked at each commit on the rows that changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.model.asks import ANY_ASK, ASK_PREFIX
from holdfast.model.budget import to_units
from holdfast.model.topics import parse_inbox
from holdfast.store.limits import parse_permits
from tests.proof.replica import Change, Replica, Row
from tests.proof.workload import PARCELS, SIDE

FINAL = ("done", "failed", "cancelled", "skipped")
DEATHS = ("crashed", "worker_lost")
QUEUES_AGAIN = ("waiting", "moved", "restarted", "undoing")
"""Ends of attempts after which a run queues behind ready ones."""

HOOK_ARGUMENT = '{"end":{"id":'
HOOKED_STATES = ("done", "failed", "cancelled")


class InvariantChecker:
    """Finds the invariants that a commit violates."""

    def __init__(self, replica: Replica, now: Callable[[], int]) -> None:
        self._replica = replica
        self._now = now
        self._before: dict[str, Row] = {}  # the sessions as they were before the commit
        self._runs_per_session: Counter[str] = Counter()  # running runs of each session before the commit
        self._ready_at: dict[str, int] = {}  # when a run got its position in the queue

    def check(self, changes: list[Change]) -> list[str]:
        """Return a description of each violation."""
        self._before = {
            change.key[0]: change.old for change in changes if change.table == "workers" and change.old is not None
        }
        changed = {change.key[0]: change.old for change in changes if change.table == "runs"}
        before = [changed.get(run["id"], run) for run in self._replica.runs()]
        self._runs_per_session = Counter(
            run["session"] for run in before if run is not None and run["state"] == "running"
        )
        checkpoints = [change for change in changes if change.table == "checkpoints"]
        self._removed = {_checkpoint_identity(each.old) for each in checkpoints if each.old and each.new is None}
        self._superseded = {
            _checkpoint_identity(each.new) for each in checkpoints if each.new and each.new["generation"] < 0
        }
        violations = []
        records: dict[str, list[Row]] = {}
        for change in changes:
            if change.table == "history" and change.new is not None:
                records.setdefault(change.key[0], []).append(change.new)
        self._retried = {run for run, rows in records.items() if any(row["kind"] == "retried" for row in rows)}
        for change in changes:
            first = change.parts()[0]
            if change.table == "runs" and first.new is not None:
                self._queue(first.old, first.new, records.get(change.key[0], []))
        violations += self._isolated_groups(changes)
        for change in changes:
            rule = getattr(self, f"_{change.table}", None)
            if rule is not None:
                given = (change, records.get(change.key[0], [])) if change.table == "runs" else (change,)
                violations += [f"{change.table} {change.key}: {fault}" for fault in rule(*given)]
        violations += _unrecorded(changes)
        touched = {change.key[0] for change in changes if change.table in ("runs", "waits", "messages")}
        violations += [f"run {run}: {fault}" for run in sorted(touched) for fault in self._waiting(run)]
        violations += self._events_and_waits(changes)
        violations += self._received(changes)
        violations += self._delivered(changes)
        violations += self._spending(changes)
        if any(change.table in ("runs", "limits", "step_permits") for change in changes):
            violations += self._permits(changes)
            violations += _hooks(changes)
            violations += _published(changes)
            violations += self._graphs(changes)
        return violations

    def _alive(self, session: str | None) -> bool:
        """Return whether the lease of a session was valid when the transaction began."""
        row = self._before.get(str(session)) or self._replica.rows["workers"].get((session,))
        return row is not None and row["lease_until"] > self._now()

    def _queue(self, old: Row | None, new: Row, records: list[Row]) -> None:
        """Note when a run got its queue position. A released run, or one whose worker died, keeps it."""
        kinds = [record["kind"] for record in records]
        ends = [record["kind"] for record in records if record["fence"] is not None]
        if old is None:
            self._ready_at[new["id"]] = self._now()
            return
        if old["state"] == "scheduled" and new["state"] == "ready" and not records:
            self._ready_at[new["id"]] = old["due_at"] + 1  # new runs come first
            return
        woken = old["state"] == "waiting" and new["state"] == "ready" and not {*kinds} - {"budget_raised"}
        if woken or "retried" in kinds or any(kind in QUEUES_AGAIN for kind in ends):
            self._ready_at[new["id"]] = self._now() + 1

    def _order(self, run: Row) -> tuple[int, int, int]:
        """Return the sort key by which runs of a lane are claimed."""
        age = msgspec.json.decode(run["options"] or "{}").get("age", (0,))
        return -run["priority"], self._ready_at[run["id"]] - age[0], run["seq"]

    # Runs

    def _runs(self, change: Change, records: list[Row]) -> Iterator[str]:
        """Check the claim of a run apart from what the same transaction did to it before, such as a restart."""
        for part in change.parts():
            yield from self._run_part(part, records)
            records = []

    def _run_part(self, change: Change, records: list[Row]) -> Iterator[str]:
        old, new = change.old, change.new
        if new is None:
            if old is not None and (old["finished_at"] is None or old["session"] is not None):
                yield f"an unfinished run was deleted, {old['state']}"
            return
        if (new["state"] in FINAL) != (new["finished_at"] is not None):
            yield "its state contradicts its end time"
        if old is None:
            return
        yield from self._claimed(old, new)
        yield from self._released(old, new, records)
        kinds = [record["kind"] for record in records]
        if old["state"] in FINAL and new["state"] != old["state"] and "retried" not in kinds:
            yield f"it was {old['state']} and became {new['state']}"
        if new["state"] == "ready" and not records:
            yield from self._became_ready(old)
        if (
            new["args"] != old["args"]
            and old["started_at"] is not None
            and not {"moved", "restarted", "retried"} & set(kinds)
        ):
            yield "its arguments were replaced although it had started"
        if new["generation"] not in (old["generation"], old["generation"] + 1):
            yield "its generation jumped"
        if new["records"] - old["records"] != len(records):
            yield f"{new['records'] - old['records']} history entries were counted, but {kinds} were written"
        yield from self._charged(old, new, records)

    def _became_ready(self, old: Row) -> Iterator[str]:
        """Check that time or an outcome made a run ready, if its history says nothing."""
        if old["state"] == "waiting":
            waits = self._replica.of_run("waits", old["id"])
            if not any(wait["generation"] == old["generation"] and wait["outcome"] is not None for wait in waits):
                yield "it was woken although none of its waits is resolved"
        if old["state"] == "scheduled" and old["due_at"] > self._now():
            yield f"it started {old['due_at'] - self._now()} µs before its time"

    def _charged(self, old: Row, new: Row, records: list[Row]) -> Iterator[str]:
        """Check that a death is charged only to a run that was alone or that its own session reported."""
        reported = any(record["kind"] == "crashed" and record["fence"] == old["fence"] for record in records)
        together = self._runs_per_session[old["session"]]
        if new["crashes"] > old["crashes"] + 1:
            yield "two crashes were counted for one"
        if new["crashes"] > old["crashes"] and together != 1 and not reported:
            yield f"it was charged with a death in which {together} runs were running"
        isolated = new["held"] == "isolated" and old["held"] not in ("isolated", "full")
        if isolated and not reported and not self._died_twice(new["id"]):
            yield "it was isolated, though it hasn't died twice in a row"

    def _died_twice(self, id: str) -> bool:
        history = sorted(self._replica.of_run("history", id), key=lambda record: record["n"])
        ends = [record["kind"] for record in history if record["since"] is not None]
        return len(ends) > 1 and all(kind in DEATHS for kind in ends[-2:])

    def _isolated_groups(self, changes: list[Change]) -> Iterator[str]:
        """Check that isolated runs are claimed separately, at most as many as may share a process."""
        claimed = [change.ready for change in changes if change.ready is not None]
        bounds = {run["isolation"] for run in claimed}
        if any(bounds) and (len(bounds) > 1 or len(claimed) > min(bounds)):
            yield f"isolated runs were claimed together: {[(run['id'], run['isolation']) for run in claimed]}"

    def _claimed(self, old: Row, new: Row) -> Iterator[str]:
        begins = old["state"] == "ready" and new["state"] == "running"
        replaced = old["state"] == "ready" and old["args"] != new["args"] and new["started_at"] is None
        if new["fence"] != old["fence"] + begins and not (replaced and new["fence"] == old["fence"] + 1):
            yield f"its fence went from {old['fence']} to {new['fence']}"
        if new["state"] == "running" and old["state"] not in ("running", "ready"):
            yield f"it was claimed while {old['state']}"
        if not begins:
            return
        if not self._alive(new["session"]):
            yield f"session {new['session']} claimed it after its lease expired"
        if old["held"] not in (None, "isolated") or old["session"] is not None:
            yield f"it was claimed while held ({old['held']}) or owned by {old['session']}"
        yield from self._may_be_claimed(new)
        if new["attempt"] != old["attempt"] + 1 - old["resumed"]:
            yield f"its attempt went from {old['attempt']} to {new['attempt']}"
        if old["held"] is None:
            if old["isolation"] is not None:
                yield "it is isolated, but was claimed like other runs"
            yield from self._in_order(new)

    def _may_be_claimed(self, run: Row) -> Iterator[str]:
        if self._is_paused(run):
            yield "it was claimed while it or its tenant was paused"
        if '"age"' in (run["options"] or "") and not self._has_side(run["session"]):
            yield f"session {run['session']} claimed it without the label that its task requires"

    def _has_side(self, session: str) -> bool:
        worker = self._before.get(session) or self._replica.rows["workers"][session,]
        return msgspec.json.decode(worker["info"])["labels"] == {SIDE: "yes"}

    def _is_paused(self, run: Row) -> bool:
        pause = self._replica.rows["pauses"].get(("tenant", run["tenant"]))
        return run["paused_at"] is not None or (pause is not None and not pause["resuming"])

    def _in_order(self, new: Row) -> Iterator[str]:
        """Check that a run starts after its predecessors: those of its unique name and those ahead in the queue."""
        for other in self._replica.runs():
            same_name = new["unique_name"] is not None and other["unique_name"] == new["unique_name"]
            if same_name and other is not new and other["session"] is not None:
                yield f"it started while {other['session']} held another run of its unique name"
            claimable = other["lane"] == new["lane"] and other["state"] == "ready" and other["held"] is None
            if claimable and not self._is_paused(other) and self._order(other) < self._order(new):
                yield f"it was claimed before run {other['id']}, which is ahead of it"

    def _released(self, old: Row, new: Row, records: list[Row]) -> Iterator[str]:
        """Check who ended an attempt: its owner with a valid lease, recovery, or an outside action."""
        if old["session"] is not None and new["session"] not in (None, old["session"]):
            yield f"it went from session {old['session']} to {new['session']}"
        if old["state"] != "running" or new["state"] == "running":
            return
        if old["fence"] != new["fence"]:
            yield "its fence changed when it was released"
        by_holder = [record for record in records if record["fence"] == old["fence"]]
        if by_holder:
            if not self._alive(old["session"]):
                yield f"session {old['session']} ended it ({by_holder[-1]['kind']}) after its lease expired"
        elif any(record["kind"] in ("crashed", "worker_lost") for record in records):
            yield from self._recovered(old, new)
        elif not any(record["kind"] in ("cancelled", "failed", "undoing") for record in records):
            yield f"it became {new['state']} without a history entry"
        elif new["session"] != old["session"]:
            yield "it was ended from outside and lost its session"

    def _recovered(self, old: Row, new: Row) -> Iterator[str]:
        if self._alive(old["session"]):
            yield f"it was recovered while the lease of {old['session']} was valid"
        if new["crashes"] > new["max_crashes"] and new["state"] != "failed":
            yield f"it crashed {new['crashes']} times and continues"

    # Durable functions

    def _checkpoints(self, change: Change) -> Iterator[str]:
        old, new = change.old, change.new
        if old is not None and new is not None:
            yield "a checkpoint was changed other than by superseding it"
        if old is not None and new is None:
            yield from self._removed_checkpoint(old)
        if old is not None or new is None:
            return
        if new["generation"] >= 0 or _checkpoint_identity(new) not in self._removed:
            yield from self._new_checkpoint(new)

    def _new_checkpoint(self, new: Row) -> Iterator[str]:
        run = self._replica.run(new["run"])
        is_superseded = new["generation"] == -1 - new["fence"]  # by the transaction that wrote it
        if run is None:
            yield "a checkpoint without a run"
            return
        if run["fence"] != new["fence"] or not (is_superseded or run["generation"] == new["generation"]):
            yield f"it was written with fence {new['fence']} instead of {run['fence']}"
        if run["state"] != "running" and not (run["ending"] is not None and new["undo"]):
            yield f"it was written while its run was {run['state']}"
        if not self._alive(run["session"]):
            yield f"session {run['session']} wrote it after its lease expired"
        if new["kind"] in ("step", "transaction"):
            for other in self._replica.of_run("checkpoints", new["run"]):
                same = (other["generation"], other["key"]) == (new["generation"], new["key"])
                if same and other["n"] != new["n"] and other["kind"] == new["kind"]:
                    yield f"step {new['key']} was recorded twice"

    def _removed_checkpoint(self, old: Row) -> Iterator[str]:
        """Only a restart and pruning delete checkpoints; those that no longer count are superseded."""
        run = self._replica.run(old["run"])
        if run is None or run["generation"] != old["generation"] or old["generation"] < 0:
            return
        if _checkpoint_identity(old) not in self._superseded:
            yield "a checkpoint was deleted"

    def _waits(self, change: Change) -> Iterator[str]:
        old, new = change.old, change.new
        if new is None:
            return
        if old is not None and old["due_at"] != new["due_at"]:
            yield "the time of a wait was changed"
        settled = old is not None and old["outcome"] is not None and new["outcome"] is not None
        if settled and (old["outcome"], old["value"]) != (new["outcome"], new["value"]):
            yield f"its outcome changed from {old['outcome']} to {new['outcome']}"
        if new["outcome"] == "due" and (old is None or old["outcome"] is None) and new["due_at"] > self._now():
            yield f"it was resolved {new['due_at'] - self._now()} µs before its time"

    def _events(self, change: Change) -> Iterator[str]:
        old, new = change.old, change.new
        emitted = old is not None and new is not None and old["emitted_at"] is not None
        if emitted and (old["payload"], old["emitted_at"]) != (new["payload"], new["emitted_at"]):
            yield "an event was emitted twice"

    def _messages(self, change: Change) -> Iterator[str]:
        old, new = change.old, change.new
        if old is not None and new is not None:
            if (old["payload"], old["topic"]) != (new["payload"], new["topic"]):
                yield "a message was changed"
            if None not in (old["taken_by"], new["taken_by"]) and new["taken_by"] not in (
                old["taken_by"], f"aside:{old['taken_by']}",
            ):  # fmt: skip
                yield f"it was taken by {old['taken_by']} and by {new['taken_by']}"
            if old["answered_at"] is not None and new["run"] not in self._retried:
                if any(old[name] != new[name] for name in ("answer", "reply", "answered_at")):
                    yield "an ask was answered twice"
                if new["taken_by"] is None:
                    yield "an ask that was answered is handled again"

    def _chunks(self, change: Change) -> Iterator[str]:
        new = change.new
        run = None if new is None else self._replica.run(new["run"])
        if new is None or run is None or change.old is not None:
            return
        if run["fence"] != new["fence"] or not self._alive(run["session"]):
            yield f"it was written with fence {new['fence']} by a session that doesn't have the run"
        same = [row for row in self._replica.of_run("chunks", new["run"]) if row["step"] is not None]
        if [(row["fence"], row["serial"]) for row in same].count((new["fence"], new["serial"])) > 1:
            yield "a chunk was stored twice"

    def _history(self, change: Change) -> Iterator[str]:
        if change.old is not None and change.new is not None:
            yield "history was changed"
        if change.new is not None and change.old is None:
            run = self._replica.run(change.new["run"])
            if run is None or change.new["n"] > run["records"]:
                yield "a history entry exceeds the count of its run"
            elif change.new["kind"] == "step_retrying":
                yield from self._failed_try(change.new, run)

    def _failed_try(self, new: Row, run: Row) -> Iterator[str]:
        """Check an entry about a failed try: written once, and only by the session that executes the run."""
        if run["state"] != "running" or run["session"] != new["session"] or not self._alive(run["session"]):
            yield f"session {new['session']} reported a failed try of a run that it doesn't have"
        same = [row for row in self._replica.of_run("history", new["run"]) if row["data"] == new["data"]]
        if len(same) > 1:
            yield "a failed try was recorded twice"

    def _workers(self, change: Change) -> Iterator[str]:
        old, new = change.old, change.new
        renewed = old is not None and new is not None and new["lease_until"] != old["lease_until"]
        if renewed and old["lease_until"] <= self._now():
            yield "an expired lease was renewed"
        if new is None:
            for run in self._replica.runs():
                if run["session"] == change.key[0]:
                    yield f"a session was deleted that run {run['id']} refers to"

    def _effects(self, change: Change) -> Iterator[str]:
        if change.new is not None:
            run, name, _ = change.key
            same = [row for row in self._replica.of_run("effects", run) if row["name"] == name]
            if len(same) > 1:
                yield f"the transaction {name} took effect {len(same)} times"

    # Waits

    def _waiting(self, id: str) -> Iterator[str]:
        run = self._replica.run(id)
        if run is None or run["kind"] is not None:
            return
        waits = [wait for wait in self._replica.of_run("waits", id) if wait["generation"] == run["generation"]]
        if run["state"] == "waiting":
            if any(wait["outcome"] is not None for wait in waits):
                yield "it waits although a wait is resolved"
            if not waits:
                yield "it waits for nothing"
            if run["session"] is not None and run["held"] is None:
                yield "it waits but has a session"
        if run["state"] not in FINAL:
            for wait in waits:
                if wait["outcome"] is None:
                    yield from self._open_wait(id, wait)

    def _open_wait(self, id: str, wait: Row) -> Iterator[str]:
        if wait["kind"] == "message":
            free = [row for row in self._replica.of_run("messages", id) if row["taken_by"] is None]
            topics = {row["topic"] for row in free}
            if wait["target"] in topics or (wait["target"] == ANY_ASK and any(map(_is_ask, topics))):
                yield f"it waits for a message of {wait['target']} that exists"
        elif wait["kind"] == "children":
            unfinished = [
                child
                for child in self._replica.runs()
                if child["parent"] == id and child["spawn_key"] == wait["target"] and child["finished_at"] is None
            ]
            if wait["pending"] != len(unfinished):
                yield f"it waits for {wait['pending']} children, of which {len(unfinished)} are unfinished"

    def _events_and_waits(self, changes: list[Change]) -> Iterator[str]:
        targets = {change.key[0] for change in changes if change.table == "events" and change.new is not None}
        targets |= {change.new["target"] for change in changes if change.table == "waits" and change.new is not None}
        for target in sorted(target for target in targets if target is not None):
            event = self._replica.rows["events"].get((target,))
            if event is None or event["emitted_at"] is None or event["more"]:
                continue
            for wait in self._replica.rows["waits"].values():
                if wait["kind"] == "event" and wait["target"] == target and wait["outcome"] is None:
                    run = self._replica.run(wait["run"])
                    if run is not None and run["generation"] == wait["generation"]:
                        yield f"run {wait['run']} waits for event {target}, which was emitted"

    def _received(self, changes: list[Change]) -> Iterator[str]:
        """Check that a message that is taken was the first of its topic, and that the wait that took it has it."""
        for change in changes:
            new = change.new
            if change.table != "messages" or new is None or new["taken_by"] is None:
                continue
            if (change.old is not None and change.old["taken_by"] is not None) or new["taken_by"].startswith("aside:"):
                continue
            run, (generation, _, key) = self._replica.run(new["run"]), new["taken_by"].partition(":")
            wait = self._replica.rows["waits"].get((new["run"], int(generation) if generation.isdecimal() else -1, key))
            takes_all_asks = wait is not None and wait["target"] == ANY_ASK
            for row in self._replica.of_run("messages", new["run"]):
                is_same = row["topic"] == new["topic"] or (takes_all_asks and _is_ask(row["topic"]))
                if is_same and row["n"] < new["n"] and row["taken_by"] is None:
                    yield f"messages {change.key}: it was taken before an earlier message of its topic"
            recorded = {
                row["key"] for row in self._replica.of_run("checkpoints", new["run"]) if row["kind"] == "message"
            }
            is_received = (wait is not None and wait["outcome"] == "message") or key in recorded
            if not is_received and run is not None and run["finished_at"] is None:
                yield f"messages {change.key}: it was taken by {new['taken_by']}, which has not received it"

    def _delivered(self, changes: list[Change]) -> Iterator[str]:
        """Check that a message that is published goes once to each unfinished function that listened before."""
        new_listeners = {change.key for change in changes if change.table == "listeners" and change.old is None}
        for change in changes:
            row = change.new
            if change.table != "publications" or row is None or row["topic"] != PARCELS or change.old is not None:
                continue
            to = msgspec.json.decode(row["payload"])["to"]
            wanted = Counter(
                (run, inbox)
                for run, inbox in self._replica.rows["listeners"].keys() - new_listeners
                if _takes(inbox, to) and self._listens(run)
            )
            given = Counter(
                (each.new["run"], each.new["topic"])
                for each in changes
                if each.table == "messages" and each.old is None and each.new is not None
                if each.new["payload"] == row["payload"] and parse_inbox(each.new["topic"]) is not None
            )
            if wanted != given or row["functions"] != len(wanted):
                yield f"message {row['id']} for {to} went to {dict(given)} instead of {dict(wanted)}"

    def _listens(self, run: str) -> bool:
        row = self._replica.run(run)
        return row is not None and row["finished_at"] is None and row["ending"] is None

    def _spending(self, changes: list[Change]) -> Iterator[str]:
        """Check that totals change by what a commit records as spent, and that nothing waits for a budget with room."""
        recorded: Counter[tuple[str, str]] = Counter()
        counted: Counter[tuple[str, str]] = Counter()
        touched = False
        for change in changes:
            new = change.new
            if new is None:
                continue
            if change.table == "checkpoints" and change.old is None and new["kind"] in ("spend", "spent"):
                if new["fence"] and _checkpoint_identity(new) not in self._removed:  # a fork copies checkpoints
                    for found in msgspec.json.decode(new["value"]):
                        recorded[new["run"], found["budget"]] += to_units(Decimal(found["amount"]), "it")
            elif change.table == "budget_totals" and new["per"] == "run":
                counted[new["key"], new["name"]] += new["total"] - (0 if change.old is None else change.old["total"])
            touched |= change.table in ("budgets", "budget_totals", "waits")
        for run, budget in sorted(recorded.keys() | counted.keys()):
            if recorded[run, budget] != counted[run, budget]:
                yield (
                    f"run {run} has spent {recorded[run, budget]} of {budget}, but {counted[run, budget]} are counted"
                )
        if touched:
            yield from self._budget_waits()

    def _budget_waits(self) -> Iterator[str]:
        for wait in self._replica.rows["waits"].values():
            total = self._replica.rows["budget_totals"].get(((wait["target"] or "").removeprefix("budget:"),))
            if total is None or wait["outcome"] is not None:
                continue
            budget = self._replica.rows["budgets"][total["name"],]
            bound = budget["bound"] if total["bound"] is None else total["bound"]
            if total["spent"] <= bound and budget["check_at"] is None:
                yield f"run {wait['run']} waits for budget {total['name']}, which has room"

    def _permits(self, changes: list[Change]) -> Iterator[str]:
        held: Counter[str] = Counter()
        for run in self._replica.runs():
            if run["session"] is not None and run["limits"] is not None:
                held.update(permit.counter for permit in parse_permits(run["limits"]))
        for row in self._replica.rows["step_permits"].values():
            holder = self._replica.run(row["run"])
            if holder is None or holder["session"] is None or holder["fence"] != row["fence"]:
                yield f"step {row['key']} of run {row['run']} holds permits, but no session runs it"
            held.update(permit.counter for permit in parse_permits(row["limits"]))
        for place, limit in self._replica.rows["limits"].items():
            if limit["used"] != held[place[0]]:
                yield f"limit {place[0]}: {limit['used']} permits are counted, but {held[place[0]]} are held"
        for change in changes:
            if change.table == "limits" and change.new is not None:
                yield from self._admitted(change.old, change.new)

    def _admitted(self, old: Row | None, new: Row) -> Iterator[str]:
        """Check a counter that has admitted more. Its limit may have been lowered after it had admitted others."""
        settings = self._replica.rows["limit_settings"].get((new["name"],))
        is_more = old is None or new["used"] > old["used"]
        if settings is None or not is_more:
            return
        if settings["concurrency"] is not None and new["used"] > settings["concurrency"]:
            yield f"limit {new['place']}: {new['used']} permits of {settings['concurrency']}"
        yield from self._rate(new["place"], new, settings)

    def _rate(self, place: str, limit: Row, settings: Row) -> Iterator[str]:
        """Check that the costs in the log of a counter, none of which is raised here, never exceed the rate."""
        if settings["rate"] is None:
            return
        log = msgspec.json.decode(limit["log"], type=list[tuple[int, int]])
        latest = max((at for at, _ in log), default=0)
        cost = sum(cost for at, cost in log if at > latest - settings["period"])
        if cost > settings["rate"]:
            yield f"limit {place}: {cost} of {settings['rate']} in one period"

    def _graphs(self, changes: list[Change]) -> Iterator[str]:
        graphs = {change.new["parent"] for change in changes if change.table == "runs" and change.new is not None}
        for id in sorted(id for id in graphs if id is not None):
            graph = self._replica.run(id)
            if graph is not None and graph["kind"] == "graph":
                yield from self._graph(graph)

    def _graph(self, graph: Row) -> Iterator[str]:
        nodes = [run for run in self._replica.runs() if run["parent"] == graph["id"] and run["node"] is not None]
        unfinished = [node for node in nodes if node["finished_at"] is None]
        if graph["state"] == "waiting" and graph["pending"] != len(unfinished):
            yield f"graph {graph['id']}: {graph['pending']} nodes are counted, but {len(unfinished)} are unfinished"
        if graph["state"] == "done" and unfinished:
            yield f"graph {graph['id']} is done, with {len(unfinished)} unfinished nodes"
        open_needs: Counter[str] = Counter()
        for needs, node in self._replica.rows["edges"]:
            needed = self._replica.run(needs)
            open_needs[node] += needed is not None and needed["finished_at"] is None
        for node in nodes:
            left = open_needs[node["id"]]
            if node["state"] == "blocked" and (node["pending"] != left or not left):
                yield f"node {node['node']} counts {node['pending']} open dependencies instead of {left}"
            if node["state"] in ("ready", "running", "waiting", "scheduled") and left and node["ending"] is None:
                yield f"node {node['node']} is {node['state']} before {left} of its dependencies have ended"


def _unrecorded(changes: list[Change]) -> Iterator[str]:
    """Check that what a function attaches to its run is recorded in the same transaction, and so written once."""
    recorded = {
        (change.new["run"], change.new["kind"])
        for change in changes
        if change.table == "checkpoints" and change.new is not None and change.old is None
    }
    for change in changes:
        kind = {"metadata": "annotate", "run_values": "set"}.get(change.table)
        if kind is not None and change.new is not None and (change.key[0], kind) not in recorded:
            yield f"{change.table} {change.key}: it was written without a checkpoint"


def _hooks(changes: list[Change]) -> Iterator[str]:
    """Compare the runs that ended in a transaction with the ends that it enqueued hooks for."""
    ended: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for change in changes:
        old, new = change.old, change.new
        if change.table != "runs" or new is None:
            continue
        if old is None and HOOK_ARGUMENT in new["args"]:
            told[msgspec.json.decode(new["args"])["end"]["id"]] += 1
        was_open = old is None or old["finished_at"] is None
        if was_open and new["state"] in HOOKED_STATES and '"hooks"' in (new["options"] or ""):
            ended[new["id"]] += 1
    for id in sorted(ended.keys() | told.keys()):
        if ended[id] != told[id]:
            yield f"run {id} ended {ended[id]} times, and {told[id]} hooks were enqueued with that"


def _published(changes: list[Change]) -> Iterator[str]:
    """Compare the messages that a transaction publishes with the runs of the subscriber and the checkpoints."""
    new = [(change.table, change.new) for change in changes if change.old is None and change.new is not None]
    stored = Counter(str(row["id"]) for table, row in new if table == "publications" and row["topic"] != PARCELS)
    created = Counter(
        msgspec.json.decode(row["options"])["published"]["message"]
        for table, row in new
        if table == "runs" and '"published"' in (row["options"] or "")
    )
    for id in sorted(stored.keys() | created.keys()):
        if not stored[id] == created[id] == 1:
            yield f"message {id} was published {stored[id]} times and created {created[id]} runs"


def _takes(inbox: str, to: str) -> bool:
    selected = parse_inbox(inbox)
    return selected is not None and selected.where["to"] == to


def _is_ask(topic: str | None) -> bool:
    return topic is not None and topic.startswith(ASK_PREFIX)


def _checkpoint_identity(row: Row) -> tuple[Any, ...]:
    """Return what stays the same when a checkpoint is superseded."""
    return tuple(row[name] for name in ("run", "n", "key", "kind", "value", "fence"))
