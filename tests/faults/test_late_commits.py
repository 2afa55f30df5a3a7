"""A commit sent over a connection that then broke, which the server executes while or after the client repeats it.

That happens when a server hangs in a slow write and the worker retries on a new connection: the changes of the first
try aren't visible yet, but its locks block the second. Of a transaction that is sent as a whole, the server may have
executed nothing yet.
"""

from __future__ import annotations

import threading

import psycopg
import pytest

from holdfast.store.commands import EmitCommand, EnqueueCommand, WaitOutcome, WriteCommand, Written
from holdfast.store.waits import event_target
from tests.support.proxy import COMMIT, Proxy
from tests.support.store_harness import StoreHarness, record_of, token_of, wait_of
from tests.support.wait_until import wait_until


@pytest.fixture
def proxy(postgres_url):
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def far(proxy):
    harness = StoreHarness(proxy.url)
    harness.session("w")
    harness.lane()
    yield harness
    harness.close()


class Later:
    """Run a call in a thread."""

    def __init__(self, call):
        self._outcome = []
        self._thread = threading.Thread(target=lambda: self._outcome.append(call()))
        self._thread.start()

    def result(self):
        self._thread.join(30)
        [outcome] = self._outcome
        return outcome


def commit_late(proxy, url, call):
    """Make a call whose first COMMIT arrives while its repetition waits for the locks of the first."""
    proxy.delay_request(COMMIT)
    later = Later(call)
    assert proxy.fired.wait(30)
    blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(url, autocommit=True) as own:
        wait_until(lambda: own.execute(blocked).fetchone()[0] > 0, what="the second try to wait for the first")
    proxy.let_late_through()
    return later.result()


def test_a_receive_takes_one_message(proxy, far, postgres_url):
    claim = far.running("w")
    for payload in ('"first"', '"second"'):
        far.store.actions.send(claim.id, "topic", payload)
    [reply] = commit_late(proxy, postgres_url, lambda: far.write("w", wait_of(claim, "message", "topic")))
    assert reply == WaitOutcome("message", '"first"')
    assert far.steps(claim.id) == [(10, "message", "message", '"first"')]
    assert far.sql("select payload, taken_by from {schema}messages order by n") == [
        ('"first"', "0:message"),
        ('"second"', None),
    ]


def test_a_repeated_emit_reports_that_it_was_the_first(proxy, far, postgres_url):
    claim = far.running("w")
    emit = EmitCommand(token_of(claim), 1, "emit", event_target(None, "e"), None, "e", "1")
    assert commit_late(proxy, postgres_url, lambda: far.write("w", emit)) == [Written("true")]
    assert far.steps(claim.id) == [(1, "emit", "emit", "true")]


def test_a_chunk_for_stream_readers_is_stored_once(proxy, far):
    claim = far.running("w")
    write = WriteCommand(token_of(claim), 1, "write", 1, '"piece"')
    proxy.delay_request(COMMIT)
    far.write("w", write)  # its first try, sent as a whole, arrives after the repetition
    assert proxy.fired.is_set()
    proxy.let_late_through()
    assert proxy.late_answered.wait(30)
    assert far.sql("select n, data from {schema}chunks") == [(1, '"piece"')]


def test_a_step_that_arrives_after_its_repetition_is_not_recorded_again(proxy, far):
    claim = far.running("w")
    proxy.delay_request(COMMIT)
    far.write("w", record_of(claim, 1, "paid"))
    assert proxy.fired.is_set()
    proxy.let_late_through()
    assert proxy.late_answered.wait(30)
    assert far.steps(claim.id) == [(1, "paid", "step", '"value 1"')]


def test_a_step_transaction_takes_effect_once_and_its_run_continues(proxy, far, postgres_url):
    claim = far.running("w")
    with psycopg.connect(postgres_url) as own:
        own.execute("create table effects (name text)")
    calls = []

    def work(connection):
        calls.append(connection.execute("insert into effects values ('paid')").rowcount)
        return f'"call {len(calls)}"'

    record = record_of(claim, 1, "paid")
    assert commit_late(proxy, postgres_url, lambda: far.store.step_transactions.run("w", record, work)) == '"call 1"'
    assert calls == [1, 1], "there was no second try"
    assert far.steps(claim.id) == [(1, "paid", "step", '"call 1"')]
    with psycopg.connect(postgres_url) as own:
        assert own.execute("select count(*) from effects").fetchone() == (1,)


def test_an_independent_run_with_a_unique_name_is_created_once(proxy, far, postgres_url):
    claim = far.running("w")
    far.lane("other")
    enqueue = EnqueueCommand(token_of(claim), 1, "enqueue", far.new("other", unique="u"))
    reply = commit_late(proxy, postgres_url, lambda: far.store.journal.enqueue("w", enqueue))
    assert reply == Written(f'"{enqueue.request.id}"')
    assert far.rows("runs") == 2
