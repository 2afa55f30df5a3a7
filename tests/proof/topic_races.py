"""Publishes that race with deploys: workers of several releases start, reconcile, stop and die while messages come.

The rules are stated without the code's own decisions: a task that every release declares, and that had a live worker
within the grace period, gets one run per message; no task ever gets two.
"""

from __future__ import annotations

import json
import random
from collections import Counter

from holdfast.model.topics import NewMessage, Topic
from holdfast.store.schedule_definitions import SHORT_ABSENCE_MICROS
from holdfast.store.topics import DeclaredSubscription
from tests.support.store_harness import SECOND, StoreHarness

GRACE_S = SHORT_ABSENCE_MICROS // SECOND
RECONCILE_S = 30
LEASE_S = 60
RELEASES: tuple[dict[str, str], ...] = (
    {"ship": "orders.*", "bill": "orders.paid"},
    {"ship": "orders.*", "bill": "*", "mail": "orders.paid"},
    {"ship": "orders.*", "mail": "orders.paid"},
    {"mail": "orders.paid"},
)
"""What the tasks of each release subscribe to; the last one is another service of the app, which has part of the code.
All others have `ship` with the same topic, and their workers may all be down while those of the service reconcile."""
SERVICE = len(RELEASES) - 1


class Worker:
    """A worker of a release. It reconciles when it starts and from time to time, and its lease may expire."""

    def __init__(self, race: Race, name: str, release: int) -> None:
        self.name, self.release = name, release
        self.race = race
        self.reconcile()
        digests = {each.name: each.digest for each in race.declared[release]}
        info = json.dumps({"app": "shop", "subscriptions": digests})
        race.harness.session(name, LEASE_S, info)
        self.lease_until = race.now + LEASE_S

    def reconcile(self) -> None:
        self.race.harness.store.topics.declare("shop", self.race.declared[self.release])
        self.reconciled_at = self.race.now


class Race:
    """One sequence of random events. `published` counts the messages that were checked."""

    def __init__(self, harness: StoreHarness, seed: int) -> None:
        self.harness = harness
        self.random = random.Random(seed)
        self.declared = [
            [
                DeclaredSubscription(task, (Topic(topic),), harness.new(task, args="{}"))
                for task, topic in release.items()
            ]
            for release in RELEASES
        ]
        self.workers: list[Worker] = []
        self.live_at: dict[str, int] = {}
        """When each task was last in the code of a live worker."""
        self.newest = 0
        self.published = 0
        for table in ("runs", "workers", "subscriptions", "publications"):
            harness.sql(f"delete from {{schema}}{table}")

    @property
    def now(self) -> int:
        return self.harness.clock.now // SECOND

    def note_live(self) -> None:
        for worker in self.workers:
            if worker.lease_until > self.now:
                self.live_at.update(dict.fromkeys(RELEASES[worker.release], self.now))

    def start(self) -> None:
        if len(self.workers) < 4:
            release = self.random.randint(max(0, self.newest - 1), min(self.newest + 1, SERVICE - 1))
            self.newest = max(self.newest, release)
            release = SERVICE if self.random.random() < 0.4 else release
            self.workers.append(Worker(self, f"w{self.random.random()}", release))

    def stop(self) -> None:
        """Stop a worker cleanly, or kill it: then its lease expires."""
        if self.workers:
            worker = self.workers.pop(self.random.randrange(len(self.workers)))
            if self.random.random() < 0.5:
                self.harness.sql("delete from {schema}workers where session = :name", name=worker.name)

    def wait(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            self.harness.clock.advance(self.random.choice((1, 5, 20)))
            for worker in self.workers:
                if worker.lease_until - self.now < LEASE_S * 2 // 3:
                    worker.lease_until = self.now + LEASE_S
                    self.harness.sql(
                        "update {schema}workers set lease_until = cast(:at as bigint) where session = :name",
                        at=worker.lease_until * SECOND, name=worker.name,
                    )  # fmt: skip
                if self.now - worker.reconciled_at >= RECONCILE_S:
                    worker.reconcile()
            self.note_live()

    def publish(self) -> None:
        message = NewMessage(f"00000000-0000-0000-0000-{self.published:012}", "orders.paid", None, str(self.published))
        counted = self.harness.store.topics.publish(message).runs
        self.published += 1
        runs = Counter(
            task
            for (task,) in self.harness.sql(
                "select l.task from {schema}runs r join {schema}lanes l on l.id = r.lane where r.args = :args",
                args=f'{{"*":[{message.payload}]}}',
            )
        )
        assert all(number == 1 for number in runs.values()), f"a subscriber got a message twice: {runs}"
        assert counted == len(runs)
        if "ship" in self.live_at and self.now - self.live_at["ship"] < GRACE_S:
            assert runs["ship"] == 1, "a message was lost in a deploy"

    def run(self, events: int) -> None:
        for _ in range(events):
            event = self.random.choices((self.start, self.stop, self.wait, self.publish), (2, 2, 2, 6))[0]
            event()
            self.note_live()


def race(harness: StoreHarness, seed: int, publishes: int) -> int:
    """Publish until this many messages were checked, in sequences of 100 events; return how many."""
    done = 0
    while done < publishes:
        sequence = Race(harness, seed)
        sequence.run(100)
        done += sequence.published
        seed += 1
    return done
