"""The rules of the store machine about topics, streams and a budget, and what all its rules share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from holdfast.errors import KeyConflict
from holdfast.model.budget import from_units
from holdfast.model.ids import new_id
from holdfast.model.topics import NewMessage, Topic, inbox_of, values_digest
from holdfast.store import topics
from holdfast.store.commands import (
    RUN_LOST,
    Listening,
    PublishCommand,
    RunToken,
    Spend,
    SpendCommand,
    WaitCommand,
    WaitOutcome,
    WaitRegistered,
    WriteCommand,
    Written,
)
from holdfast.store.topics import DeclaredSubscription
from tests.proof.model import BOUND, MAX_CRASHES, SHORT_ABSENCE, Chunk, HeldClaim, Model
from tests.support.store_harness import StoreHarness
from tests.support.stream_programs import StreamReader

PICK = st.integers(0, 5)
TOPIC = "parcels"
PLACES = ("x", "y")
SUBSCRIBED = "x"
"""The place whose messages the subscription of the task selects."""


class InteractionRules(RuleBasedStateMachine):
    """What the rules of `StoreMachine` share, and those about topics, streams and a budget."""

    harnesses: tuple[StoreHarness, ...] = ()
    model: Model
    claims: list[HeldClaim]
    readers: dict[tuple[str, str], StreamReader]
    numbers: int

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def compare(self, wanted: Any, call: Any) -> None:
        """Check that every store replies as the model does."""
        for harness in self.harnesses:
            reply = call(harness)
            assert reply == wanted, f"{harness.store.database.dialect.name} replied {reply!r}, the model {wanted!r}"

    def run(self, pick: int) -> str:
        """Pick a run, preferably one that was claimed recently."""
        ids = [*dict.fromkeys(held.id for held in reversed(self.claims[-3:])), *self.model.runs]
        return ids[pick % len(ids)]

    def held(self, pick: int) -> HeldClaim:
        return self.claims[-1 - pick % len(self.claims)]

    def of(self, held: HeldClaim, harness: StoreHarness) -> RunToken:
        return RunToken(held.id, harness.row(held.id)["seq"], held.fence, 0)

    # Topics

    @staticmethod
    def declare_subscription(harness: StoreHarness, subscribes: bool) -> None:
        template = harness.new("task", args="{}", max_crashes=MAX_CRASHES)
        declared = DeclaredSubscription("task", (Topic(TOPIC, {"to": SUBSCRIBED}),), template)
        harness.store.topics.declare("shop", [declared] if subscribes else [])

    @rule(subscribes=st.booleans(), later=st.sampled_from((0, SHORT_ABSENCE - 1, SHORT_ABSENCE)))
    def deploy(self, subscribes: bool, later: int) -> None:
        """Reconcile the subscription with code that has it or hasn't, and publish some time later."""
        self.model.deploy(subscribes)
        self.model.now += later
        for harness in self.harnesses:
            self.declare_subscription(harness, subscribes)
            harness.clock.now += later
        self.publish_one(SUBSCRIBED, None)

    @rule(to=st.sampled_from(PLACES), key=st.sampled_from((None, None, "once")))
    def publish(self, to: str, key: str | None) -> None:
        self.publish_one(to, key)

    def publish_one(self, to: str, key: str | None) -> None:
        """Publish a message, with a key one of two."""
        n = self.number()
        payload = msgspec.json.encode({"to": to, "n": n if key is None else n % 2}).decode()
        inbox, created, id = inbox_of(TOPIC, {"to": to}), str(new_id()), str(new_id())
        wanted = self.model.publish(
            id, TOPIC, payload, inbox, selected=to == SUBSCRIBED, created=created, key=key
        )  # fmt: skip

        def publish(harness: StoreHarness) -> tuple[str, int, int, bool] | str:
            try:
                with _next_run(created):
                    done = harness.store.topics.publish(NewMessage(id, TOPIC, None, payload, key, payload))
            except KeyConflict:
                return "conflict"
            return str(done.id), done.runs, done.functions, done.created

        self.compare(wanted, publish)

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, to=st.sampled_from(PLACES), repeat=st.booleans())
    def publish_from_run(self, pick: int, to: str, repeat: bool) -> None:
        """Publish from the code of a run."""
        held, n, id, created = self.held(pick), self.number(), str(new_id()), str(new_id())
        payload, inbox = msgspec.json.encode({"to": to, "n": n}).decode(), inbox_of(TOPIC, {"to": to})
        counts = self.model.publish_from(
            held, n, id, TOPIC, payload, inbox, selected=to == SUBSCRIBED, created=created
        )  # fmt: skip

        def write(harness: StoreHarness) -> bool:
            command = PublishCommand(self.of(held, harness), n, f"publish {n}", id, TOPIC, None, payload)
            with _next_run(created):
                if repeat:  # as after a lost reply
                    harness.write(held.session, command)
                return harness.write(held.session, command) != [RUN_LOST]

        self.compare(counts, write)

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, to=st.sampled_from(PLACES), key=st.sampled_from(("x", "y")), publishes=st.integers(0, 2))
    def listen(self, pick: int, to: str, key: str, publishes: int) -> None:
        """Wait for the next message, and publish some, for which the run need not wait."""
        held, n, inbox = self.held(pick), self.number(), inbox_of(TOPIC, {"to": to})
        key = f"next {to} {key}"
        wanted = self.model.wait(held, "message", key, inbox, None, n, listens=True)
        listening = Listening(None, TOPIC, '["to"]', values_digest([to]))

        def register(harness: StoreHarness) -> str:
            command = WaitCommand(self.of(held, harness), key, "message", inbox, n=n, listening=listening)
            (reply,) = harness.write(held.session, command)
            if isinstance(reply, WaitOutcome):
                return reply.kind
            return "open" if isinstance(reply, WaitRegistered) else "lost"

        self.compare(wanted, register)
        for _ in range(publishes):
            self.publish_one(to, None)

    # A budget

    @staticmethod
    def declare_budget(harness: StoreHarness) -> None:
        harness.store.budgets.declare([("gold", "tenant", BOUND, None, "wait")])

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, amount=st.integers(1, 3), repeat=st.booleans(), waits=st.booleans())
    def spend(self, pick: int, amount: int, repeat: bool, waits: bool) -> None:
        """Spend, and perhaps wait until the budget has room."""
        held, n = self.held(pick), self.number()
        wanted = self.model.spend(held, n, amount)
        text = None if wanted is None else (format(from_units(wanted[0]), "f"), wanted[1])

        def write(harness: StoreHarness) -> tuple[str, bool] | None:
            command = SpendCommand(self.of(held, harness), n, f"$spend:gold#{n}", [Spend("gold", amount)])
            if repeat:  # as after a lost reply
                harness.write(held.session, command)
            (reply,) = harness.write(held.session, command)
            if not isinstance(reply, Written):
                return None
            (found,) = msgspec.json.decode(reply.value)
            return found["spent"], found["exceeded"]

        self.compare(text, write)
        if waits:
            self.wait_for_room(held)

    def wait_for_room(self, held: HeldClaim) -> None:
        n = self.number()
        key = f"$budget:gold#{n}"
        wanted = self.model.wait_for_room(held, key, n)

        def register(harness: StoreHarness) -> str:
            command = WaitCommand(self.of(held, harness), key, "budget", name="gold", n=n)
            (reply,) = harness.write(held.session, command)
            if isinstance(reply, WaitOutcome):
                return reply.kind
            return "open" if isinstance(reply, WaitRegistered) else "lost"

        self.compare(wanted, register)

    @rule(more=st.sampled_from((-1, 0, 0, 5)))
    def set_bound(self, more: int) -> None:
        """Let the budget allow what was spent, less or more."""
        bound = max(self.model.spent + more, 0)
        self.model.set_bound(bound)
        for harness in self.harnesses:
            assert harness.store.budgets.set("gold", bound, "ops")

    # Streams

    @precondition(lambda self: self.claims)
    @rule(
        pick=PICK, step=st.sampled_from((None, "s1", "s2")), step_try=st.sampled_from((1, 1, 2)),
        back=st.sampled_from((0, 0, 1, 2)), repeat=st.booleans(), follow=st.booleans(),
    )  # fmt: skip
    def write(self, pick: int, step: str | None, step_try: int, back: int, repeat: bool, follow: bool) -> None:
        """Write chunks in a step, or as the function's body, which may have been rewound by some of its writes."""
        held = self.held(pick)
        self.write_one(held, step, 1, 0, repeat=False)
        self.write_one(held, step, step_try, back, repeat)
        if follow:
            self.follow_one(held.id, to_the_end=True, seed=pick)

    def write_one(self, held: HeldClaim, step: str | None, step_try: int, back: int, repeat: bool) -> None:
        number = self.number()
        serial, n = number, None
        if step is None:
            written = [chunk.serial for chunk in self.model.runs[held.id].chunks if chunk.step is None]
            serial, step_try, n = max((written[-1] if written else 0) + 1 - back, 1), 1, number
        chunk = Chunk(step, step_try, held.fence, serial, f'"{number}"')
        counts = self.model.write(held, n, chunk)

        def write(harness: StoreHarness) -> bool:
            token = self.of(held, harness)
            command = WriteCommand(token, n, step or f"write {n}", 1, chunk.data, step, step_try, serial)
            if repeat:  # as after a lost reply
                harness.write(held.session, command)
            return harness.write(held.session, command) != [RUN_LOST]

        self.compare(counts, write)

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICK, to_the_end=st.booleans(), seed=st.integers(0, 3))
    def follow(self, pick: int, to_the_end: bool, seed: int) -> None:
        self.follow_one(self.run(pick), to_the_end, seed)

    def follow_one(self, id: str, to_the_end: bool, seed: int) -> None:
        """Let a follower read a page of what a run wrote, or everything: then it has what counts."""
        for harness in self.harnesses:
            name = harness.store.database.dialect.name
            reader, rng = self.readers.setdefault((name, id), StreamReader()), random.Random(seed)
            while reader.read(harness.store, id, rng) and to_the_end:
                pass
            if to_the_end:
                assert [chunk.data for chunk in reader.kept] == self.model.transcript(id), name


@contextmanager
def _next_run(id: str) -> Iterator[None]:
    """Give the run that a message creates this id, the same in all stores."""
    with mock.patch.object(topics, "new_id_text", return_value=id):
        yield
