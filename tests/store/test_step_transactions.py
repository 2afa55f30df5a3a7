"""Application code and its checkpoint in one transaction: both happen or neither, and once."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.errors import TaskError
from tests.support.proxy import COMMIT, Proxy
from tests.support.store_harness import CANCELLED, StoreHarness, record_of


@pytest.fixture
def claim(harness):
    return prepare(harness)


def prepare(harness):
    harness.session("w")
    harness.user_sql("create table effects (what text)")
    return harness.running("w")


class Work:
    """Application code with an effect in a table of its own."""

    def __init__(self, harness, then=lambda _connection: None):
        self._mark = "%s" if harness.on_postgres else "?"
        self._then = then
        self.calls = 0

    def __call__(self, connection):
        self.calls += 1
        connection.execute(f"insert into effects values ({self._mark})", [f"call {self.calls}"])
        self._then(connection)
        return f'"{self.calls}"'


def effects(harness):
    return [what for (what,) in harness.user_sql("select what from effects")]


def run(harness, claim, work, n=1, session="w"):
    return harness.store.step_transactions.run(session, record_of(claim, n, "t", value=None), work)


def test_the_effect_and_its_checkpoint_commit_together(harness, claim):
    assert run(harness, claim, Work(harness)) == '"1"'
    assert effects(harness) == ["call 1"]
    assert harness.steps(claim.id) == [(1, "t", "step", '"1"')]


@pytest.mark.parametrize("how", ["cancelled", "done", "lease over", "of another session", "taken over"])
def test_the_effect_of_a_lost_run_is_rolled_back(harness, claim, how):
    session = "w"
    if how == "cancelled":
        harness.store.actions.cancel(claim.id, CANCELLED)
    elif how == "done":
        harness.end("w", claim)
    elif how == "of another session":
        session = harness.session("v")
    else:
        harness.clock.advance(60)
    if how == "taken over":
        harness.recover("w")
        harness.session("v")
        harness.claim("v")
        harness.session("w")
    work = Work(harness)
    assert run(harness, claim, work, session=session) is None
    assert (work.calls, effects(harness), harness.steps(claim.id)) == (1, [], [])


def test_an_error_in_application_code_rolls_back_and_propagates(harness, claim):
    def fail(_connection):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(harness, claim, Work(harness, fail))
    assert (effects(harness), harness.steps(claim.id)) == ([], [])
    assert run(harness, claim, Work(harness)) == '"1"', "the connection can be used again"
    assert effects(harness) == ["call 1"]


def test_a_run_is_not_locked_while_application_code_runs(postgres_url):
    harness = StoreHarness(postgres_url)
    claim = prepare(harness)
    other = harness.another_store()
    assert run(harness, claim, Work(harness, lambda _: other.actions.send(claim.id, "topic", "1"))) == '"1"'
    assert run(harness, claim, Work(harness, lambda _: other.actions.cancel(claim.id, CANCELLED)), n=2) is None
    assert (effects(harness), harness.state(claim.id)) == (["call 1"], "cancelled")
    harness.close()


CONFLICT = """
create function conflict() returns trigger language plpgsql as $$
begin
    if new.what = 'call 1' then raise exception using errcode = '40001'; end if;
    return null;
end $$;
create constraint trigger conflict after insert on effects deferrable initially deferred
for each row execute function conflict();
"""


def test_after_a_conflict_at_commit_application_code_is_called_again(postgres_url):
    harness = StoreHarness(postgres_url)
    claim = prepare(harness)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(CONFLICT)
    work = Work(harness)
    assert run(harness, claim, work) == '"2"'
    assert work.calls == 2
    assert (effects(harness), harness.steps(claim.id)) == (["call 2"], [(1, "t", "step", '"2"')])
    harness.close()


def test_after_a_conflict_with_the_checkpoint_application_code_is_called_again(postgres_url):
    """Application code has an old snapshot, and the run that the checkpoint locks has changed since."""
    harness = StoreHarness(postgres_url)
    claim = prepare(harness)

    class OnASnapshot(Work):
        def __call__(self, connection):
            connection.execute("set transaction isolation level repeatable read")
            return super().__call__(connection)

    def change_the_run(_connection):
        if work.calls == 1:
            harness.sql("update {schema}runs set priority = 1")

    work = OnASnapshot(harness, change_the_run)
    assert run(harness, claim, work) == '"2"'
    assert (effects(harness), harness.steps(claim.id)) == (["call 2"], [(1, "t", "step", '"2"')])
    harness.close()


@pytest.mark.parametrize(("lost", "calls"), [("answer", 1), ("request", 2)])
def test_a_connection_lost_around_the_commit_applies_the_effect_once(postgres_url, lost, calls):
    with Proxy(postgres_url) as proxy:
        harness = StoreHarness(proxy.url)
        claim = prepare(harness)

        def break_it(_connection):
            if work.calls == 1:
                getattr(proxy, f"lose_{lost}")(COMMIT)

        work = Work(harness, break_it)
        assert run(harness, claim, work) == f'"{calls}"'
        assert proxy.fired.is_set()
        assert work.calls == calls
        assert effects(harness) == [f"call {calls}"]
        assert harness.steps(claim.id) == [(1, "t", "step", f'"{calls}"')]
        harness.close()


@pytest.mark.parametrize("sql", ["commit", "rollback"])
@pytest.mark.parametrize("caught", [False, True])
def test_application_code_that_ends_the_transaction_gets_an_error_and_records_nothing(harness, claim, sql, caught):
    def end(connection):
        try:
            connection.execute(sql)
        except TaskError:
            if not caught:
                raise

    with pytest.raises(TaskError, match="don't commit or roll back"):
        run(harness, claim, Work(harness, end))
    assert harness.steps(claim.id) == []
    harness.user_sql("delete from effects")  # on PostgreSQL what was committed by hand is
    assert run(harness, claim, Work(harness)) == '"1"', "the connection can be used again"
    assert effects(harness) == ["call 1"]
