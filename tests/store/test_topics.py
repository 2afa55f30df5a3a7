"""Topics in the store: who receives a message, keys, deploys, and what is deleted."""

from __future__ import annotations

import json
from itertools import count

import pytest

from holdfast.errors import KeyConflict
from holdfast.model.ids import new_id_text
from holdfast.model.topics import NewMessage, Topic, inbox_of, values_digest
from holdfast.store.commands import RUN_LOST, Listening, PublishCommand, WaitCommand, WaitOutcome, WaitRegistered
from holdfast.store.schedule_definitions import KEEP_ORPHANED_MICROS, SHORT_ABSENCE_MICROS
from holdfast.store.topics import DeclaredSubscription
from tests.support.store_harness import DAY, SECOND, token_of

numbers = count(100)
ABSENCE_S = SHORT_ABSENCE_MICROS / 1_000_000


def subscription(harness, task="ship", *topics, **more):
    return DeclaredSubscription(task, topics or (Topic("orders.paid"),), harness.new(task, args="{}", **more))


def declare(harness, *subscriptions, app="shop"):
    return harness.store.topics.declare(app, list(subscriptions))


def message(topic="orders.paid", payload="1", tenant=None, **more):
    return NewMessage(new_id_text(), topic, tenant, payload, **more)


def publish(harness, *args, **more):
    return harness.store.topics.publish(message(*args, **more))


def next_of(claim, topic="orders.paid", n=None, **where):
    fields, wanted = str(sorted(where)).replace("'", '"'), values_digest(value for _, value in sorted(where.items()))
    listening = Listening(claim.tenant, topic, fields.replace(", ", ","), wanted)
    at = next(numbers)
    return WaitCommand(
        token_of(claim), f"$next:{topic}#{at}", "message", inbox_of(topic, where), n=n or at, listening=listening
    )


def runs(harness):
    return harness.sql(
        "select l.task, r.tenant, r.args from {schema}runs r join {schema}lanes l on l.id = r.lane order by r.seq"
    )


def test_each_subscribing_task_gets_one_run(harness):
    declare(
        harness,
        subscription(harness),
        subscription(harness, "bill", Topic("orders.*"), Topic("*.paid")),
        subscription(harness, "other", Topic("orders.refunded")),
    )
    published = publish(harness, payload='{"id":7}', tenant="acme")
    assert (published.runs, published.functions) == (2, 0)
    assert runs(harness) == [("bill", "acme", '{"*":[{"id":7}]}'), ("ship", "acme", '{"*":[{"id":7}]}')]


def test_a_message_without_subscribers_is_kept(harness):
    publish(harness)
    ((topic, messages, created, *_),) = harness.store.topics.topics()
    assert (topic, messages, created) == ("orders.paid", 1, 0)


def test_a_key_publishes_once(harness):
    declare(harness, subscription(harness))
    first = publish(harness, key="k", digest="d")
    again = publish(harness, key="k", digest="d")
    assert (first.id, first.created, again.created) == (again.id, True, False)
    assert again.runs == 1
    with pytest.raises(KeyConflict, match="another message"):
        publish(harness, key="k", digest="e")
    assert publish(harness, "orders.refunded", key="k", digest="e").created, "the key belongs to the topic"
    assert publish(harness, key="k", digest="e", tenant="acme").created, "and to the tenant"
    assert len(runs(harness)) == 2


def test_a_repeated_transaction_publishes_once(harness, monkeypatch):
    declare(harness, subscription(harness))
    topics = harness.store.topics
    transaction = topics._transaction

    def twice(purpose, work):
        transaction(purpose, work)  # whose response gets lost
        return transaction(purpose, work)

    monkeypatch.setattr(topics, "_transaction", twice)
    assert publish(harness).runs == 1
    assert publish(harness, key="k", digest="d").created
    assert len(runs(harness)) == 2


def test_functions_receive_what_is_published_after_their_first_wait(harness):
    harness.session("w")
    claim, before = harness.running("w"), publish(harness, payload="0")
    assert before.functions == 0
    assert harness.write("w", next_of(claim)) == [WaitRegistered(None)]
    harness.suspend("w", claim)
    assert [publish(harness, payload=str(n)).functions for n in (1, 2)] == [1, 1]
    assert harness.state(claim.id) == "ready"
    (again,) = harness.claim("w", 1)
    assert list(harness.waits(claim.id).values()) == [("message", "1")]
    assert harness.write("w", next_of(again)) == [WaitOutcome("message", "2")], "it came between two waits"
    publish(harness, payload="3")
    assert harness.write("w", next_of(again)) == [WaitOutcome("message", "3")], "or while the function was running"


def test_functions_receive_only_the_values_and_the_tenant_that_they_wait_for(harness):
    harness.session("w")
    claims = {
        "all": harness.running("w"), "no": harness.running("w"), "seven": harness.running("w"),
        "acme": harness.running("w", tenant="acme"),
    }  # fmt: skip
    harness.write("w", next_of(claims["all"]))
    harness.write("w", next_of(claims["no"], country="NO"))
    harness.write("w", next_of(claims["seven"], country="NO", id=7))
    harness.write("w", next_of(claims["acme"]))
    assert publish(harness, payload='{"id":7,"country":"NO"}').functions == 3
    assert publish(harness, payload='{"id":8,"country":"NO"}').functions == 2
    assert publish(harness, payload='{"id":7,"country":"SE"}').functions == 1
    assert publish(harness, payload='{"id":7}', tenant="acme").functions == 1
    assert publish(harness, "orders.refunded").functions == 0


def test_functions_that_ended_receive_nothing(harness):
    harness.session("w")
    done, failed = harness.running("w"), harness.running("w")
    for claim in (done, failed):
        harness.write("w", next_of(claim))
    harness.end("w", done)
    harness.end("w", failed, "failed")
    assert publish(harness).functions == 0
    left = harness.sql("select run from {schema}listeners")
    assert [str(run) for (run,) in left] == [failed.id], "it may be retried"
    harness.store.actions.retry(failed.id)
    assert publish(harness).functions == 1


def test_a_run_publishes_once(harness):
    declare(harness, subscription(harness))
    harness.session("w")
    claim, listener = harness.running("w"), harness.running("w")
    harness.write("w", next_of(listener))
    harness.suspend("w", listener)
    command = PublishCommand(token_of(claim), 1, "$publish:x#1", new_id_text(), "orders.paid", None, "5")
    first = harness.write("w", command)
    assert first == harness.write("w", command), "a repeat after a lost response"
    assert harness.waits(listener.id).popitem()[1] == ("message", "5")
    assert len([task for task, *_ in runs(harness) if task == "ship"]) == 1
    harness.end("w", claim)
    late = PublishCommand(token_of(claim), 2, "$publish:x#2", new_id_text(), "orders.paid", None, "6")
    assert harness.write("w", late) == [RUN_LOST]
    assert harness.rows("publications") == 1


def test_many_messages_of_one_batch_arrive_in_order(harness):
    harness.session("w")
    publisher, listener = harness.running("w"), harness.running("w")
    harness.write("w", next_of(listener))
    commands = [
        PublishCommand(token_of(publisher), n, f"$publish:x#{n}", new_id_text(), "orders.paid", None, str(n))
        for n in (1, 2, 3)
    ]
    harness.write("w", *commands)
    assert list(harness.waits(listener.id).values()) == [("message", "1")]
    assert [harness.write("w", next_of(listener)) for _ in range(2)] == [
        [WaitOutcome("message", "2")], [WaitOutcome("message", "3")],
    ]  # fmt: skip


# Deploys


def live(harness, name, *subscriptions, app="shop"):
    digests = {each.name: each.digest for each in subscriptions}
    harness.session(name, 10_000, json.dumps({"app": app, "subscriptions": digests}))


def test_no_message_is_lost_while_the_workers_of_a_subscription_restart(harness):
    ship, bill = subscription(harness), subscription(harness, "bill")
    declare(harness, ship, bill)
    live(harness, "other", bill)
    changes = declare(harness, bill)  # a worker without the code of ship looks while that of ship restarts
    assert changes.orphaned == ["ship"]
    assert publish(harness).runs == 2
    harness.clock.advance(ABSENCE_S - 1)
    assert publish(harness).runs == 2
    assert declare(harness, ship, bill).changed == ["ship"]
    harness.clock.advance(2)
    assert publish(harness).runs == 2


def test_a_subscription_that_was_removed_ends(harness):
    ship, bill = subscription(harness), subscription(harness, "bill")
    declare(harness, ship, bill)
    declare(harness, bill)
    harness.clock.advance(ABSENCE_S + 1)
    assert publish(harness).runs == 1
    harness.clock.advance(KEEP_ORPHANED_MICROS / 1_000_000)
    assert declare(harness, bill).removed == ["ship"]


def test_a_rolling_deploy_keeps_the_new_declaration_and_the_old_workers_subscriptions(harness):
    old, gone = subscription(harness), subscription(harness, "gone")
    new = subscription(harness, "ship", Topic("orders.*"))
    declare(harness, old, gone)
    live(harness, "old", old, gone)
    assert declare(harness, new).changed == ["ship"]
    live(harness, "new", new)
    assert publish(harness, "orders.refunded").runs == 1, "the new declaration applies at once"
    assert publish(harness).runs == 2, "a live worker declares the other one"
    assert declare(harness, old, gone).refused.keys() == {"ship"}
    assert publish(harness, "orders.refunded").runs == 1


def test_a_subscription_of_another_app_is_left_alone(harness):
    declare(harness, subscription(harness))
    live(harness, "w", subscription(harness))
    assert declare(harness, subscription(harness, "bill"), app="billing").orphaned == []
    assert declare(harness, subscription(harness, "ship", Topic("*")), app="billing").refused.keys() == {"ship"}


def test_a_publisher_stores_what_its_code_declares_only_if_nothing_is_stored(harness):
    ship = subscription(harness)
    harness.store.topics.declare_new("shop", [ship])
    assert publish(harness).runs == 1
    declare(harness)
    harness.store.topics.declare_new("shop", [ship])
    harness.clock.advance(ABSENCE_S + 1)
    assert publish(harness).runs == 0, "a newer release has removed it"


def test_a_subscription_that_cannot_be_read_does_not_stop_others(harness):
    declare(harness, subscription(harness), subscription(harness, "bill"), subscription(harness, "mail"))
    harness.sql("update {schema}subscriptions set topics = 'x' where name = 'bill'")
    harness.sql("""update {schema}subscriptions set template = '{"newer":1}' where name = 'mail'""")
    assert publish(harness).runs == 1


# Retention


def test_old_messages_are_deleted(harness):
    harness.session("w", 10 * DAY / SECOND)
    claim = harness.running("w")
    harness.write("w", next_of(claim))
    for payload in "12":  # the first one resolves the wait
        publish(harness, payload=payload)
    harness.clock.advance(1.1 * DAY / SECOND)
    publish(harness, payload="3")
    assert harness.store.retention.prune_topics(DAY) is False
    assert harness.rows("publications") == 1
    assert harness.sql("select payload from {schema}messages order by n") == [("1",), ("3",)]


def test_a_pruned_run_listens_no_more(harness):
    harness.session("w")
    claim = harness.running("w")
    harness.write("w", next_of(claim))
    harness.end("w", claim)
    harness.clock.advance(31 * 86_400)
    harness.store.retention.prune()
    assert harness.rows("runs") == harness.rows("listeners") == 0
