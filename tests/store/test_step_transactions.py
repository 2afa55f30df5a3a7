"""Application code and its checkpoint in one transaction: both happen or neither, and once."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.errors import TaskError
from tests.support.proxy import COMMIT, Proxy
from tests.support.world import CANCELLED, World, record_of


@pytest.fixture
def claim(world):
    return prepare(world)


def prepare(world):
    world.session("w")
    world.sql("create table effects (what text)")
    return world.running("w")


class Work:
    """Application code with an effect in a table of its own."""

    def __init__(self, world, then=lambda _connection: None):
        self._mark = "%s" if world.on_postgres else "?"
        self._then = then
        self.calls = 0

    def __call__(self, connection):
        self.calls += 1
        connection.execute(f"insert into effects values ({self._mark})", [f"call {self.calls}"])
        self._then(connection)
        return f'"{self.calls}"'


def effects(world):
    return [what for (what,) in world.sql("select what from effects")]


def run(world, claim, work, n=1, session="w"):
    return world.store.step_transactions.run(session, record_of(claim, n, "t", value=None), work)


def test_the_effect_and_its_checkpoint_commit_together(world, claim):
    assert run(world, claim, Work(world)) == '"1"'
    assert effects(world) == ["call 1"]
    assert world.steps(claim.id) == [(1, "t", "step", '"1"')]


@pytest.mark.parametrize("how", ["cancelled", "done", "lease over", "of another session", "taken over"])
def test_the_effect_of_a_lost_run_is_rolled_back(world, claim, how):
    session = "w"
    if how == "cancelled":
        world.store.actions.cancel(claim.id, CANCELLED)
    elif how == "done":
        world.end("w", claim)
    elif how == "of another session":
        session = world.session("v")
    else:
        world.clock.advance(60)
    if how == "taken over":
        world.recover("w")
        world.session("v")
        world.claim("v")
        world.session("w")
    work = Work(world)
    assert run(world, claim, work, session=session) is None
    assert (work.calls, effects(world), world.steps(claim.id)) == (1, [], [])


def test_an_error_in_application_code_rolls_back_and_propagates(world, claim):
    def fail(_connection):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(world, claim, Work(world, fail))
    assert (effects(world), world.steps(claim.id)) == ([], [])
    assert run(world, claim, Work(world)) == '"1"', "the connection can be used again"
    assert effects(world) == ["call 1"]


def test_a_run_is_not_locked_while_application_code_runs(postgres_url):
    world = World(postgres_url)
    claim = prepare(world)
    other = world.another_store()
    assert run(world, claim, Work(world, lambda _: other.actions.send(claim.id, "topic", "1"))) == '"1"'
    assert run(world, claim, Work(world, lambda _: other.actions.cancel(claim.id, CANCELLED)), n=2) is None
    assert (effects(world), world.state(claim.id)) == (["call 1"], "cancelled")
    world.close()


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
    world = World(postgres_url)
    claim = prepare(world)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(CONFLICT)
    work = Work(world)
    assert run(world, claim, work) == '"2"'
    assert work.calls == 2
    assert (effects(world), world.steps(claim.id)) == (["call 2"], [(1, "t", "step", '"2"')])
    world.close()


def test_after_a_conflict_with_the_checkpoint_application_code_is_called_again(postgres_url):
    """Application code has an old snapshot, and the run that the checkpoint locks has changed since."""
    world = World(postgres_url)
    claim = prepare(world)

    class OnASnapshot(Work):
        def __call__(self, connection):
            connection.execute("set transaction isolation level repeatable read")
            return super().__call__(connection)

    def change_the_run(_connection):
        if work.calls == 1:
            world.sql("update {schema}runs set priority = 1")

    work = OnASnapshot(world, change_the_run)
    assert run(world, claim, work) == '"2"'
    assert (effects(world), world.steps(claim.id)) == (["call 2"], [(1, "t", "step", '"2"')])
    world.close()


@pytest.mark.parametrize(("lost", "calls"), [("answer", 1), ("request", 2)])
def test_a_connection_lost_around_the_commit_applies_the_effect_once(postgres_url, lost, calls):
    with Proxy(postgres_url) as proxy:
        world = World(proxy.url)
        claim = prepare(world)

        def break_it(_connection):
            if work.calls == 1:
                getattr(proxy, f"lose_{lost}")(COMMIT)

        work = Work(world, break_it)
        assert run(world, claim, work) == f'"{calls}"'
        assert proxy.fired.is_set()
        assert work.calls == calls
        assert effects(world) == [f"call {calls}"]
        assert world.steps(claim.id) == [(1, "t", "step", f'"{calls}"')]
        world.close()


@pytest.mark.parametrize("sql", ["commit", "rollback"])
@pytest.mark.parametrize("caught", [False, True])
def test_application_code_that_ends_the_transaction_gets_an_error_and_records_nothing(world, claim, sql, caught):
    def end(connection):
        try:
            connection.execute(sql)
        except TaskError:
            if not caught:
                raise

    with pytest.raises(TaskError, match="don't commit or roll back"):
        run(world, claim, Work(world, end))
    assert world.steps(claim.id) == []
    world.sql("delete from effects")  # on PostgreSQL what was committed by hand is
    assert run(world, claim, Work(world)) == '"1"', "the connection can be used again"
    assert effects(world) == ["call 1"]
