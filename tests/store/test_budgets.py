"""Budgets in the store: a spend counts once, no raise is missed, and a model says what the totals are."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.model.budget import MAX_STORED_UNITS, from_units
from holdfast.store.budgets import BudgetRow
from holdfast.store.commands import (
    RUN_LOST,
    NewCheckpoint,
    Spend,
    SpendCommand,
    WaitCommand,
    WaitOutcome,
    WaitRegistered,
    Written,
)
from tests.store.test_journal_races import stopped
from tests.support.manual_transaction import BlockedCall
from tests.support.store_harness import SECOND, StoreHarness, token_of

BUDGET = BudgetRow("usd", "tenant", 100, None, "wait")


def declare(harness, per="tenant", bound=100, period=None, on_exceeded="wait"):
    harness.store.budgets.declare([("usd", per, bound, period, on_exceeded)])
    return harness


@pytest.fixture
def rich(harness):
    harness.session("w")
    return declare(harness)


@pytest.fixture
def postgres(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.session("w")
    yield declare(harness)
    harness.close()


def spend_of(claim, amount, n=1, **more):
    return SpendCommand(token_of(claim), n, f"$spend:usd#{n}", [Spend("usd", amount)], **more)


def wait_of(claim, n=2):
    return WaitCommand(token_of(claim), f"$budget:usd#{n}", "budget", name="usd", n=n)


def found(reply):
    """Return what a spend has found: what was spent, and whether that exceeds the budget."""
    assert isinstance(reply, Written)
    (one,) = msgspec.json.decode(reply.value)
    return one["spent"], one["exceeded"]


def spent(harness, key=""):
    return {total.key: total.spent for total in harness.store.budgets.totals("usd")}.get(key, 0)


def units(amount):
    return format(from_units(amount), "f")


def test_a_spend_counts_once_although_its_reply_got_lost(rich):
    claim = rich.running("w")
    command = spend_of(claim, 60)
    (first,) = rich.write("w", command)
    (again,) = rich.write("w", command)
    assert first == again
    assert found(first) == (units(60), False)
    assert spent(rich) == 60
    assert rich.store.budgets.spending([claim.id]) == {claim.id: {"usd": 60}}


def test_the_spends_of_a_batch_find_the_totals_of_those_before(rich):
    claims = [rich.running("w") for _ in range(3)]
    replies = rich.write("w", *(spend_of(claim, 60) for claim in claims))
    assert [found(reply) for reply in replies] == [(units(60), False), (units(120), True), (units(180), True)]


def test_a_step_is_recorded_with_what_it_has_spent_or_not_at_all(rich):
    claim = rich.running("w")
    record = NewCheckpoint(*token_of(claim), 1, "step#1", "step", "1")
    command = spend_of(claim, 60, kind="spent", record=record, marker=2, marker_key="$spent:step#1")
    (first,) = rich.write("w", command)
    assert rich.write("w", command) == [first]
    assert [row[:2] for row in rich.sql("select key, kind from {schema}checkpoints order by n")] == [
        ("step#1", "step"), ("$spent:step#1", "spent"),
    ]  # fmt: skip
    rich.store.actions.cancel(claim.id, "{}")
    later = NewCheckpoint(*token_of(claim), 3, "step#2", "step", "1")
    lost = spend_of(claim, 60, n=3, kind="spent", record=later, marker=4, marker_key="$spent:step#2")
    assert rich.write("w", lost) == [RUN_LOST]
    assert spent(rich) == 60
    assert rich.rows("checkpoints") == 2


def test_a_run_of_another_claim_spends_nothing(rich):
    claim = rich.running("w")
    rich.end("w", claim)
    assert rich.write("w", spend_of(claim, 60)) == [RUN_LOST]
    assert spent(rich) == 0


def test_a_wait_that_was_registered_is_found_again_and_resolved_once(rich):
    claim = rich.running("w")
    rich.write("w", spend_of(claim, 160))
    assert rich.write("w", wait_of(claim)) == [WaitRegistered(None)] == rich.write("w", wait_of(claim))
    assert rich.kinds(claim.id).count("budget_exceeded") == 1
    rich.store.budgets.set("usd", 160, "ada")
    (reply,) = rich.write("w", wait_of(claim))
    assert reply == WaitOutcome("event", None)
    assert rich.waits(claim.id) == {}


def test_a_wait_ends_with_its_window(rich):
    declare(rich, period=60 * SECOND)
    claim = rich.running("w")
    rich.write("w", spend_of(claim, 160))
    (reply,) = rich.write("w", wait_of(claim))
    assert 0 < reply.due_in <= 60 * SECOND
    rich.suspend("w", claim)
    rich.clock.advance(60)
    assert rich.store.timers.resolve_due_waits() == 1
    assert rich.state(claim.id) == "ready"


def test_a_total_stops_at_what_the_column_holds(rich):
    rich.sql("update {schema}budgets set bound = 0")
    for n in range(11):
        rich.write("w", spend_of(rich.running("w"), 999_999_999 * 10**9, n=n + 1))
    assert spent(rich) == MAX_STORED_UNITS


def test_totals_of_passed_windows_are_pruned(rich):
    declare(rich, period=60 * SECOND)
    rich.write("w", spend_of(rich.running("w", tenant="acme"), 60))
    rich.store.retention.prune_limits()
    assert spent(rich, "acme") == 60
    rich.clock.advance(3720 + 120)
    assert spent(rich, "acme") == 0
    rich.store.retention.prune_limits()
    assert rich.sql("select key from {schema}budget_totals where per = 'tenant'") == []


# Races


def test_a_raise_while_a_wait_registers_wakes_it(postgres):
    claim = postgres.running("w")
    postgres.write("w", spend_of(claim, 160))
    waiter = stopped(postgres, lambda store: store.journal.write("w", [wait_of(claim)]), "add_waits")
    raiser = BlockedCall(postgres, lambda: postgres.store.budgets.set("usd", 160, "ada"))
    assert waiter.result() == [WaitRegistered(None)]
    assert raiser.result() is True
    postgres.suspend("w", claim)
    assert postgres.state(claim.id) == "ready"


def test_a_wait_that_registers_while_the_budget_is_raised_finds_room(postgres):
    claim, other = postgres.running("w"), postgres.running("w")
    postgres.write("w", spend_of(claim, 160))
    postgres.write("w", wait_of(claim))
    raiser = stopped(postgres, lambda store: store.budgets.set("usd", 160, "ada"), "clear_waiting")
    waiter = BlockedCall(postgres, lambda: postgres.write("w", wait_of(other)))
    assert raiser.result() is True
    assert waiter.result() == [WaitOutcome("budget", None)]


def test_runs_that_spend_at_the_same_time_are_all_counted(postgres):
    first, second = postgres.running("w"), postgres.running("w")
    one = stopped(postgres, lambda store: store.journal.write("w", [spend_of(first, 60)]), "add_checkpoints")
    two = BlockedCall(postgres, lambda: postgres.write("w", spend_of(second, 60)))
    assert found(one.result()[0]) == (units(60), False)
    assert found(two.result()[0]) == (units(120), True)


# A model

AMOUNTS = st.sampled_from((0, 1, 40, 60))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("spend"), st.lists(st.tuples(st.integers(0, 3), AMOUNTS), min_size=1, max_size=3)),
        st.tuples(st.just("repeat"), st.none()),
        st.tuples(st.just("lost"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(0, 3)),
        st.tuples(st.just("set"), st.sampled_from((0, 50, 100, 300))),
        st.tuples(st.just("own"), st.tuples(st.integers(0, 3), st.sampled_from((None, 10, 200)))),
        st.tuples(st.just("reset"), st.none()),
    ),
    max_size=12,
)
SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], max_examples=12
)


class Model:
    """Budgets in plain Python: totals by key, bounds, and the runs that wait."""

    def __init__(self) -> None:
        self.bound = 100
        self.own: dict[str, int] = {}
        self.spent: Counter[str] = Counter()
        self.waiting: dict[int, str] = {}

    def is_exceeded(self, key: str) -> bool:
        return self.spent[key] > self.own.get(key, self.bound)

    def changed(self) -> None:
        """Let runs continue that have room."""
        self.waiting = {run: key for run, key in self.waiting.items() if self.is_exceeded(key)}


class Game:
    """Does the same to the store and to the model."""

    def __init__(self, harness: StoreHarness, per: str) -> None:
        tenants = ("acme", "acme", "tiny", None)
        self.harness, self.per, self.model = harness, per, Model()
        self.claims = [harness.running("w", tenant=tenant) for tenant in tenants]
        self.keys = [
            claim.id if per == "run" else tenant or "" for claim, tenant in zip(self.claims, tenants, strict=True)
        ]
        self.totals: Counter[str] = Counter()
        self.numbers: Counter[int] = Counter()
        self.sent: list[SpendCommand] = []

    def next_number(self, run):
        self.numbers[run] += 1
        return self.numbers[run]

    def spend(self, spends):
        self.sent = [spend_of(self.claims[run], amount, self.next_number(run)) for run, amount in spends]
        for (run, amount), reply in zip(spends, self.harness.write("w", *self.sent), strict=True):
            key = self.keys[run]
            self.model.spent[key] += amount
            self.totals[self.claims[run].id] += amount
            assert found(reply) == (units(self.model.spent[key]), self.model.is_exceeded(key))

    def repeat(self, _):
        self.harness.write("w", *self.sent)

    def lost(self, run):
        stale = spend_of(self.claims[run], 60, 1000)
        stale.token = stale.token._replace(fence=stale.token.fence + 7)
        assert self.harness.write("w", stale) == [RUN_LOST]

    def wait(self, run):
        if run not in self.model.waiting:
            (reply,) = self.harness.write("w", wait_of(self.claims[run], self.next_number(run)))
            assert isinstance(reply, WaitRegistered) == self.model.is_exceeded(self.keys[run])
            if isinstance(reply, WaitRegistered):
                self.model.waiting[run] = self.keys[run]

    def set(self, bound):
        self.model.bound = bound
        self.harness.store.budgets.set("usd", bound, "ada")
        self.model.changed()

    def own(self, given):
        run, bound = given
        self.model.own.pop(self.keys[run], None)
        self.model.own |= {} if bound is None else {self.keys[run]: bound}
        self.harness.store.budgets.set_total(BUDGET._replace(per=self.per), self.keys[run], bound, "ada")
        self.model.changed()

    def reset(self, _):
        self.model.bound = 100
        self.harness.store.budgets.reset("usd")
        self.model.changed()

    def check(self):
        """Compare the store with the model."""
        store = self.harness.store.budgets
        assert {key: spent(self.harness, key) for key in self.keys} == {key: self.model.spent[key] for key in self.keys}
        counted = store.spending([claim.id for claim in self.claims])
        assert {run: each["usd"] for run, each in counted.items() if each["usd"]} == +self.totals
        waits = [self.harness.waits(claim.id).values() for claim in self.claims]
        waiting = {run for run, each in enumerate(waits) if any(outcome is None for outcome, _ in each)}
        assert waiting == set(self.model.waiting)


@pytest.mark.parametrize("per", ["run", "tenant"])
def test_the_store_agrees_with_a_model(harness, per):
    @settings(SETTINGS)
    @given(ACTIONS)
    def each(actions):
        harness.store.retention.clear()
        harness.session("w")
        harness.sql("delete from {schema}budgets")
        game = Game(declare(harness, per), per)
        for what, given_value in actions:
            getattr(game, what)(given_value)
            game.check()

    each()
