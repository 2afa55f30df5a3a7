"""The REST API: responses, problems and the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from holdfast import Context
from holdfast.database.transfer import put_up_tenant_fence
from holdfast.policy.json_schema import find_mismatch
from holdfast.web.api.operation import PREFIX
from holdfast.web.responses import MAX_BODY_BYTES
from holdfast.web.site import OPERATIONS, STREAMS
from tests.support.asks import send_ask
from tests.support.web import Visitor


def test_a_run_is_enqueued_once_per_key_and_its_result_can_be_read(shop, open_visitor):
    asked = {"task": "add", "kwargs": {"a": 1, "b": 2}, "key": "k", "tags": ["t"], "priority": 3}
    made = open_visitor.post("/api/v1/runs", asked)
    assert (made.status, made.json["task"], made.json["created"]) == (201, "add", True)
    assert open_visitor.post("/api/v1/runs", asked).json == made.json | {"created": False}
    conflict = open_visitor.post("/api/v1/runs", asked | {"kwargs": {"a": 1, "b": 3}})
    assert (conflict.status, conflict.json["code"]) == (409, "key_conflict")
    shop.drain()
    read = open_visitor.get(f"/api/v1/runs/{made.json['id']}").json
    assert (read["info"]["state"], read["info"]["result"], read["info"]["priority"]) == ("done", 3, 3)
    (listed,) = open_visitor.get("/api/v1/runs?key=k").json["runs"]
    assert (listed["id"], listed["key"], listed["args"]) == (made.json["id"], "k", {"a": 1, "b": 2})
    assert open_visitor.get("/api/v1/runs?key=other").json["runs"] == []


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"task": "add", "args": ["one", 2]}, 422),
        ({"task": "nowhere"}, 422),
        ({"task": "add", "args": [1, 2], "delay": -1}, 422),
        ({"task": "add", "args": [1, 2], "delay": 1e300}, 422),
        ({"task": "add", "args": [1, 2], "priority": 10**30}, 422),
        ({"task": "add", "args": [1, 2], "colour": "red"}, 422),
        ({"task": "add", "kwargs": {"self": 1}}, 422),
        ({"task": "add", "args": [1, 2], "kwargs": {"args": 1, "kwargs": 2}}, 422),
        ({"task": "x\0y", "remote": True}, 422),
        ({"task": "", "remote": True}, 422),
        ({}, 422),
        ([], 422),
    ],
)
def test_invalid_enqueue_is_a_problem(open_visitor, asked, status):
    answer = open_visitor.post("/api/v1/runs", asked)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert {"type", "title", "status", "detail", "code"} <= answer.json.keys()


def test_remote_task_can_be_enqueued(shop, open_visitor):
    made = open_visitor.post("/api/v1/runs", {"task": "far.away", "args": [1], "remote": True, "queue": "far"})
    info = shop.app.get_run(made.json["id"]).info()
    assert (info.task, info.queue, info.state) == ("far.away", "far", "ready")


def test_a_tenant_that_was_moved_away_is_a_conflict_without_the_address_of_its_database(shop, open_visitor):
    database = shop.app.store.database

    def fence(connection):
        with connection.transaction():
            put_up_tenant_fence(database, connection, "acme", "acme is at postgresql://host/shop")

    database.connection("client").run(fence)
    asked = {"task": "far.away", "args": [1], "remote": True, "tenant": "acme"}
    answer = open_visitor.post("/api/v1/runs", asked)
    assert (answer.status, answer.json["code"]) == (409, "tenant_moved")
    assert "postgresql" not in str(answer.json)
    assert open_visitor.post("/api/v1/runs", asked | {"tenant": "other"}).status == 201


def test_argument_named_self_is_accepted(shop, open_visitor):
    made = open_visitor.post("/api/v1/runs", {"task": "far.away", "kwargs": {"self": 1}, "remote": True})
    assert open_visitor.get(f"/api/v1/runs/{made.json['id']}").json["args"] == {"self": 1}


def test_runs_are_found_by_metadata_and_an_existing_one_has_another_status(open_visitor):
    asked = {"task": "work", "remote": True, "key": "k", "metadata": {"order": 42, "who": "ada"}}
    made, again = open_visitor.post("/api/v1/runs", asked), open_visitor.post("/api/v1/runs", asked)
    assert (made.status, again.status) == (201, 200)
    for query in ("metadata=order%3D42", "metadata=order%3D42&metadata=who%3Dada", "metadata=who%3D%22ada%22"):
        (found,) = open_visitor.get(f"/api/v1/runs?{query}").json["runs"]
        assert (found["id"], found["metadata"]) == (made.json["id"], asked["metadata"])
    assert open_visitor.get("/api/v1/runs?metadata=order%3D43").json["runs"] == []
    assert open_visitor.get("/api/v1/runs?metadata=order").status == 422
    bulk = {"verb": "cancel", "filter": {"metadata": ["order=42"]}}
    assert open_visitor.post("/api/v1/bulk/preview", bulk).json["count"]["value"] == 1
    assert 'href="/runs?metadata=order%3D42"' in open_visitor.get(f"/runs/{made.json['id']}").text
    assert made.json["id"] in open_visitor.get("/runs?metadata=order%3D42").text


def test_invalid_or_too_large_body_is_rejected(open_visitor):
    kind = {"content-type": "application/json"}
    assert open_visitor.ask("POST", "/api/v1/events", b"{no", kind).status == 400
    assert open_visitor.ask("POST", "/api/v1/events", b" " * (MAX_BODY_BYTES + 1), kind).status == 413


def test_lists_are_filtered_and_paginated(shop, open_visitor):
    ids = [str(run.id) for run in shop.add.enqueue_many([(n, n) for n in range(5)])]
    first = open_visitor.get("/api/v1/runs?limit=3").json
    second = open_visitor.get(f"/api/v1/runs?limit=3&after={first['after']}").json
    assert sorted(run["id"] for run in first["runs"] + second["runs"]) == sorted(ids)
    assert second["after"] is None
    shop.drain()
    assert len(open_visitor.get("/api/v1/runs?state=done&state=failed&task=add").json["runs"]) == 5
    assert open_visitor.get("/api/v1/runs?state=failed").json["runs"] == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "state=odd", "colour=red", "task=a&task=b", "after=zz", "created_from=noon"],
)
def test_invalid_query_is_rejected(open_visitor, query):
    assert open_visitor.get(f"/api/v1/runs?{query}").status in (404, 422)


def test_a_run_is_cancelled_retried_and_forked_and_history_says_who(shop, fill):
    runs = fill()
    visitor = shop.visitor("operate")
    at = f"/api/v1/runs/{runs['waiting'].id}"
    assert visitor.post(f"{at}/cancel", {"reason": "enough"}).json == {"changed": True}
    assert visitor.post(f"{at}/cancel").json == {"changed": False}
    preview = visitor.get(f"{at}/retry").json
    assert (preview["mode"], preview["kept"], preview["again"]) == ("resume", ["first"], [])
    assert visitor.post(f"{at}/retry").json == {"changed": True}
    assert visitor.get(f"{at}/retry").json["mode"] == "none"
    assert visitor.post(f"{at}/messages", {"topic": "topic", "payload": 5}).status == 200
    fork = visitor.post(f"{at}/fork", {"from_step": "first"})
    assert (fork.status, fork.json["created"]) == (201, True)
    told = {entry["kind"]: entry["data"] for entry in visitor.get(f"{at}/history").json["entries"]}
    assert told["cancelled"] == {"reason": "enough", "by": "operate None"}
    assert told["retried"] == {"by": "operate None"}
    assert told["sent"] == {"by": "operate None", "topic": "topic"}
    forked = visitor.get(f"/api/v1/runs/{fork.json['id']}/history").json["entries"][1]
    assert (forked["kind"], forked["data"]["by"]) == ("forked", "operate None")


def test_a_message_that_was_set_aside_is_shown_and_sent_again(shop):
    @shop.app.task(name="numbers")
    async def numbers(ctx: Context) -> int:
        return await ctx.receive("n", type=int)

    run = numbers.enqueue()
    run.send("n", "one")
    shop.drain()
    visitor = shop.visitor("operate")
    at = f"/api/v1/runs/{run.id}"
    (message,) = visitor.get(at).json["set_aside"]
    assert (message["n"], message["topic"], message["payload"]) == (1, "n", "one")
    page = visitor.get(f"/runs/{run.id}").text
    assert "Messages set aside" in page
    assert visitor.post(f"{at}/messages/7/resend", {}).status == 404
    assert visitor.post(f"{at}/messages/x/resend", {}).status == 404
    assert visitor.post(f"{at}/messages/1/resend", {"payload": 1}).json == {"changed": True}
    shop.drain()
    assert visitor.get(at).json["info"]["result"] == 1
    assert visitor.post(f"{at}/messages/1/resend", {}).status == 409


def test_a_run_is_asked_and_shows_its_values(shop):
    @shop.app.task(name="object", asks={"add": int, "fail": None, "close": None, "wait": None})
    async def thing(ctx: Context) -> int:
        total = 0

        async def add(number: int) -> int:
            nonlocal total
            total += number
            await ctx.set("total", total)
            return total

        def fail() -> None:
            raise ValueError("no")

        def close() -> int:
            return ctx.stop(total)

        return await ctx.serve(add=add, fail=fail, close=close)

    run, visitor = thing.enqueue(), shop.visitor("operate")
    at = f"/api/v1/runs/{run.id}"
    later = visitor.post(f"{at}/asks/add", {"payload": 1, "key": "k1", "wait": 0})
    assert (later.status, later.json["state"], later.json["key"]) == (202, "pending", "k1")
    assert visitor.get(f"{at}/answers/k1").status == 202
    (pending,) = visitor.get(f"{at}/asks").json["asks"]
    assert (pending["name"], pending["key"], pending["received"]) == ("add", "k1", False)
    assert "Unanswered asks" in visitor.get(f"/runs/{run.id}").text
    with shop.app.worker():
        found = visitor.post(f"{at}/asks/add", {"payload": 2, "wait": 20})
        assert (found.status, found.json["state"], found.json["reply"]) == (200, "replied", 3)
        failed = visitor.post(f"{at}/asks/fail", {"wait": 20}).json
        assert (failed["state"], failed["type"], failed["reason"]) == ("rejected", "ValueError", "no")
        for path, body, status in (
            ("asks/add", {"payload": "x"}, 422), ("asks/remove", {}, 422), ("asks/add", {"wait": 31}, 422),
            ("asks/add", {"payload": 5, "key": "k1"}, 409),
        ):  # fmt: skip
            assert visitor.post(f"{at}/{path}", body).status == status, body
        assert visitor.get(f"{at}/answers/k1").json["reply"] == 1
        assert visitor.get(f"{at}/answers/other").status == 404
        (value,) = visitor.get(f"{at}/values").json["values"]
        assert (value["name"], value["value"], value["version"]) == ("total", 3, 2)
        assert visitor.get(at).json["values"][0]["value"] == 3
        assert "Values" in visitor.get(f"/runs/{run.id}").text
        assert visitor.post(f"{at}/asks/close", {"wait": 20}).json["reply"] == 3
        run.result(timeout=20)
    assert visitor.post(f"{at}/asks/add", {"payload": 1}).status == 409
    by = [entry["data"] for entry in visitor.get(f"{at}/history").json["entries"] if entry["kind"] == "sent"]
    assert by[0] == {"by": "operate None", "ask": "add"}


def test_an_ask_that_a_run_never_answers_ends_with_it(shop):
    @shop.app.task(name="mute")
    async def mute(ctx: Context) -> None:
        await ctx.wait_for("go")

    run, visitor = mute.enqueue(), shop.visitor("operate")
    at = f"/api/v1/runs/{run.id}"
    key = visitor.post(f"{at}/asks/add", {"wait": 0}).json["key"]
    shop.app.emit("go")
    shop.drain()
    assert visitor.get(f"{at}/answers/{key}").json["state"] == "run_finished"


def test_steps_reasons_and_graphs_are_returned(shop, open_visitor, fill):
    runs = fill()
    steps = open_visitor.get(f"/api/v1/runs/{runs['waiting'].id}/steps").json
    assert ([step["name"] for step in steps["steps"]], steps["waits"][0]["kind"]) == (["first"], "message")
    why = open_visitor.get(f"/api/v1/runs/{runs['waiting'].id}/why").json
    assert [reason["code"] for reason in why["reasons"]] == ["message"]
    graph = open_visitor.get(f"/api/v1/runs/{runs['graph'].id}/graph").json
    assert {node["name"]: node["state"] for node in graph["nodes"]}["extract"] == "done"
    assert open_visitor.get(f"/api/v1/runs/{runs['done'].id}/graph").status == 409


@pytest.mark.parametrize(("whose", "what", "of"), [("done", "history", "entries"), ("graph", "graph", "nodes")])
def test_history_is_paginated(shop, open_visitor, fill, whose, what, of):
    at = f"/api/v1/runs/{fill()[whose].id}/{what}"
    whole = open_visitor.get(at).json
    assert (len(whole[of]) > 1, whole["after"]) == (True, None)
    found, after = [], 0
    while after is not None:
        some = open_visitor.get(f"{at}?limit=1&after={after}").json
        assert len(some[of]) == 1
        found, after = found + some[of], some["after"]
    assert found == whole[of]
    assert open_visitor.get(f"{at}?after={len(found)}").json[of] == []
    wrong = ("limit=201", "limit=0", "after=-1", "x=1")
    assert {open_visitor.get(f"{at}?{query}").status for query in wrong} == {422}


def test_steps_come_in_parts(shop, open_visitor, fill):
    at = f"/api/v1/runs/{fill()['waiting'].id}/steps"
    assert (len(open_visitor.get(at).json["steps"]), open_visitor.get(at).json["after"]) == (1, None)
    behind = open_visitor.get(f"{at}?after=1").json
    assert (behind["steps"], len(behind["waits"]), behind["after"]) == ([], 1, None)


def test_a_gate_is_found_and_completed_once_if_the_output_fits(shop, open_visitor, fill):
    runs = fill()
    (gate,) = open_visitor.get("/api/v1/gates").json["gates"]
    assert (gate["name"], gate["graph"]) == ("approve", str(runs["graph"].id))
    at = f"/api/v1/runs/{gate['graph']}/gates/approve"
    assert open_visitor.post(f"{at}/complete", {"output": {"ok": "maybe"}}).status == 422
    assert open_visitor.post(f"{at}/complete", {"output": {"ok": True}}).json == {"changed": True}
    assert open_visitor.post(f"{at}/complete", {"output": {"ok": True}}).json == {"changed": False}
    assert open_visitor.post(f"{at}/fail", {"error": "no"}).status == 409
    assert open_visitor.post(at.replace("approve", "nowhere") + "/fail", {"error": "no"}).status == 404
    assert open_visitor.get("/api/v1/gates").json["gates"] == []


def test_queues_are_paused_and_resumed(shop, open_visitor, fill):
    fill()
    assert open_visitor.post("/api/v1/queues/default/pause").json == {"changed": True}
    assert [queue["paused"] for queue in open_visitor.get("/api/v1/queues").json["queues"]] == [True]
    assert open_visitor.post("/api/v1/queues/default/resume").json == {"changed": True}


def test_a_run_is_paused_resumed_and_changed(shop, open_visitor):
    run = shop.app.registry.get("add").enqueue(1, 2)
    path = f"/api/v1/runs/{run.id}"
    assert open_visitor.post(f"{path}/pause").json == {"changed": True}
    assert open_visitor.get(f"{path}/why").json["reasons"][0]["code"] == "paused"
    assert open_visitor.post(f"{path}/resume").json == {"changed": True}
    assert open_visitor.post(f"{path}/update", {"tags": ["x"], "args": [3, 4]}).json == {"changed": True}
    assert run.info().tags == ("x",)
    target = {"kind": "tenant", "name": "acme"}
    assert open_visitor.post("/api/v1/pauses", target).json == {"changed": True}
    assert [each["name"] for each in open_visitor.get("/api/v1/pauses").json["pauses"]] == ["acme"]
    assert open_visitor.post("/api/v1/pauses/resume", target).json == {"changed": True}


def test_budgets_are_set_and_reset(shop, open_visitor):
    shop.app.budget("a/b", limit=1, per="tenant")
    shop.drain()
    found = open_visitor.post("/api/v1/budgets/a/b/set", {"limit": 2.5})
    assert (found.status, found.json["limit"], found.json["declared_limit"]) == (200, "2.5", "1")
    found = open_visitor.post("/api/v1/budgets/a/b/set", {"limit": "7", "tenant": "acme"})
    assert found.json["totals"][0] | {"set_at": None, "set_by": None} == {
        "key": "acme", "spent": "0", "limit": "7", "waiting": 0, "set_at": None, "set_by": None,
    }  # fmt: skip
    assert open_visitor.get("/api/v1/budgets").json["budgets"][0]["set_by"] is not None
    for wrong in (
        {},
        {"limit": -1},
        {"limit": "much"},
        {"limit": None},
        {"limit": 5, "run": str(uuid4())},
        {"more": 1},
    ):
        assert open_visitor.post("/api/v1/budgets/a/b/set", wrong).status == 422, wrong
    assert open_visitor.post("/api/v1/budgets/gone/set", {"limit": 5}).json["code"] == "budget_not_found"
    assert open_visitor.post("/api/v1/budgets/a/b/reset", {"tenant": "acme"}).json["totals"][0]["limit"] == "2.5"
    assert open_visitor.post("/api/v1/budgets/a/b/reset", {}).json["limit"] == "1"


def test_limits_are_set_and_reset(shop, open_visitor):
    shop.app.limit("a/b", concurrency=2, rate="5/min")
    shop.drain()
    found = open_visitor.post("/api/v1/limits/a/b/set", {"rate": "50/min", "concurrency": None})
    assert (found.status, found.json["rate"], found.json["concurrency"]) == (200, 50, None)
    assert (found.json["declared_rate"], found.json["declared_concurrency"]) == (5, 2)
    assert open_visitor.post("/api/v1/limits/a/b/set", {"concurrency": 7}).json["rate"] == 50
    assert open_visitor.get("/api/v1/limits").json["limits"][0]["set_by"] == found.json["set_by"] is not None
    for wrong in ({}, {"rate": "often"}, {"concurrency": 0}, {"colour": "red"}):
        assert open_visitor.post("/api/v1/limits/a/b/set", wrong).status == 422
    assert open_visitor.post("/api/v1/limits/gone/set", {"rate": "5/s"}).json["code"] == "limit_not_found"
    found = open_visitor.post("/api/v1/limits/a/b/reset", {})
    assert (found.json["rate"], found.json["concurrency"], found.json["set_at"]) == (5, 2, None)


def test_schedules_that_are_not_there_are_not_found(open_visitor):
    assert open_visitor.get("/api/v1/schedules").json == {"schedules": []}
    for verb in ("pause", "resume", "run", "update", "delete"):
        assert open_visitor.post(f"/api/v1/schedules/nightly/{verb}").status == 404
    assert open_visitor.get("/api/v1/schedules/nightly").status == 404


def test_schedules_are_created_changed_and_deleted(shop, open_visitor):
    body = {"name": "hourly", "task": "add", "args": [1, 2], "every": 3600}
    made = open_visitor.post("/api/v1/schedules", body)
    assert (made.status, made.json["state"], made.json["app"], made.json["every"]) == (201, "on", None, 3600)
    changed = open_visitor.post("/api/v1/schedules/hourly/update", {"cron": "0 8 * * *", "tz": "Europe/Oslo"})
    assert (changed.json["cron"], changed.json["every"]) == ("0 8 * * *", None)
    days = {"start": "2026-11-02T00:00:00+00:00", "end": "2026-11-05T00:00:00+00:00"}
    assert len(open_visitor.post("/api/v1/schedules/hourly/backfill", days).json["ids"]) == 3
    refused = open_visitor.post("/api/v1/schedules", {**body, "every": 60})
    assert (refused.status, "exists with other settings" in refused.json["detail"]) == (422, True)
    assert open_visitor.post("/api/v1/schedules", {"name": "x", "every": 60}).status == 422
    shown = open_visitor.get("/api/v1/schedules/hourly").json
    assert [change["did"].split()[0] for change in shown["changes"]] == ["backfilled", "updated", "created"]
    assert open_visitor.post("/api/v1/schedules/hourly/delete").json == {"changed": True}
    assert open_visitor.get("/api/v1/schedules").json == {"schedules": []}


def test_no_route_and_no_such_method_are_problems_too(open_visitor):
    assert open_visitor.get("/api/v1/nowhere").json["code"] == "no_route"
    assert open_visitor.post("/api/v1/workers").status == 405
    assert open_visitor.get("/api/v1/nowhere", accept="text/html").json["code"] == "no_route"
    assert open_visitor.get("/nowhere", accept="*/*").json["code"] == "no_route"
    assert open_visitor.get("/api/v1/runs/not-an-id").status == 404


def test_many_runs_are_previewed_retried_and_cancelled_by_a_filter(shop, fill):
    runs = fill()
    shop.boom.options(tenant="other").enqueue("again")
    shop.drain()
    visitor = shop.visitor("operate", "acme")
    asked = {"filter": {"task": "boom"}}
    preview = visitor.post("/api/v1/bulk/preview", {"verb": "retry", **asked}).json
    assert preview["count"] == {"value": 1, "exact": True}
    assert [run["id"] for run in preview["sample"]] == [str(runs["failed"].id)]
    retried = visitor.post("/api/v1/bulk/retry", asked).json["progress"]
    assert (retried["looked_at"], retried["changed"], retried["after"]) == (1, 1, None)
    assert runs["failed"].history()[-1].data == {"by": "operate acme"}
    cancelled = visitor.post("/api/v1/bulk/cancel", {**asked, "reason": "enough"}).json["progress"]
    assert cancelled["changed"] == 1
    assert runs["failed"].history()[-1].data == {"reason": "enough", "by": "operate acme"}
    assert visitor.post("/api/v1/bulk/cancel", {"filter": {"tenant": "other"}}).status == 403


def test_counts_and_statistics_are_returned(shop, open_visitor, fill):
    fill()
    counts = open_visitor.get("/api/v1/counts").json
    assert counts["states"]["failed"] == {"value": 1, "exact": True}
    (whole,) = open_visitor.get("/api/v1/stats").json["stats"]
    assert (whole["failed"], whole["runs"] >= 3) == (1, True)
    assert len(open_visitor.get("/api/v1/stats?span=minute&last=600").json["stats"]) == 10
    by_task = open_visitor.get("/api/v1/stats?by=task").json["stats"]
    assert "boom" in [each["name"] for each in by_task]
    assert open_visitor.get("/api/v1/stats?last=1e12&span=minute").status == 422


def test_metrics_count_what_the_store_has(shop, open_visitor):
    shop.add.options(queue='a "queue"').enqueue(1, 2)
    lines = open_visitor.get("/metrics").text.splitlines()
    assert r'holdfast_runs{queue="a \"queue\"",state="ready"} 1' in lines
    assert 'holdfast_workers{state="working"} 0' in lines
    assert any(line.startswith(r'holdfast_queue_oldest_ready_seconds{queue="a \"queue\""} ') for line in lines)


def test_the_document_names_every_operation_and_what_it_takes_and_gives(open_visitor):
    document = open_visitor.get("/api/v1/openapi.json").json
    named = {operation["operationId"] for path in document["paths"].values() for operation in path.values()}
    assert named == {operation.name for operation in (*OPERATIONS, *STREAMS)}
    stream = document["paths"]["/runs/{id}/stream"]["get"]
    content = stream["responses"]["200"]["content"]
    assert set(content) == {"text/event-stream", "application/x-ndjson"}
    assert set(content["text/event-stream"]["x-events"]) == {"chunk", "reset", "value", "end"}
    assert {each["name"] for each in stream["parameters"]} == {"id", "after", "token", "Last-Event-ID"}
    assert document["servers"] == [{"url": PREFIX}]
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]


def test_events_are_listed_emitted_and_cleared(shop, open_visitor):
    run = shop.wait.options(tenant="acme").enqueue("paid")
    shop.drain()
    told = open_visitor.post("/api/v1/events", {"name": "paid", "payload": 1}).json
    assert told == {"changed": True, "awaited_elsewhere": ["acme"]}
    found = open_visitor.get("/api/v1/events").json
    assert [(each["name"], each["tenant"], each["run"]) for each in found["awaited"]] == [("paid", "acme", str(run.id))]
    assert [(each["name"], each["tenant"], each["payload"]) for each in found["emitted"]] == [("paid", None, 1)]
    assert open_visitor.post("/api/v1/events/clear", {"name": "paid"}).json == {"changed": True}
    assert open_visitor.get("/api/v1/events").json["emitted"] == []


def test_responses_match_the_openapi_document(shop, open_visitor, fill):
    runs = fill()
    send_ask(runs["waiting"], "add", 1, "first")
    shop.app.limit("api", concurrency=1)
    shop.drain()  # stores the limit
    document = open_visitor.get("/api/v1/openapi.json").json
    streams = {stream.path for stream in STREAMS}
    for path, operations in document["paths"].items():
        if "get" not in operations or "{schedule}" in path or path in streams:
            continue
        run = runs["graph" if path.endswith(("graph", "gates", "{gate}")) else "waiting"].id
        filled = path.replace("{id}", str(run)).replace("{gate}", "approve").replace("{key}", "first")
        filled = filled.replace("{limit}", "api")
        answer = open_visitor.get(PREFIX + filled + ("?text=acme" if path == "/search" else ""))
        schema = operations["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert find_mismatch(answer.json, {**schema, "$defs": document["components"]["schemas"]}) is None, path


def test_the_site_can_be_mounted_below_a_path(shop):
    visitor = Visitor(shop.site(), shop.control.tokens.create("operate").token, root="/ops")
    assert visitor.get("/api/v1/openapi.json").json["servers"] == [{"url": "/ops/api/v1"}]
    assert 'href="/ops/runs"' in visitor.get("/").text


def test_a_run_that_was_never_made_is_not_found(open_visitor):
    answer = open_visitor.get(f"/api/v1/runs/{uuid4()}")
    assert (answer.status, answer.json["code"]) == (404, "run_not_found")


class Listener:
    """Listens to a stream until it has heard enough, doing something after the first event."""

    def __init__(self, visitor: Visitor, path: str) -> None:
        self.visitor, self.path = visitor, path
        self.heard: list[str] = []

    async def hear(self, enough: int, then=None) -> list[str]:
        scope = {
            "type": "http", "method": "GET", "path": self.path, "query_string": b"", "root_path": "",
            "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8787),
        }  # fmt: skip
        done = asyncio.Event()

        async def receive():
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            for line in message.get("body", b"").decode().splitlines():
                if line.startswith("event: "):
                    self.heard.append(line.removeprefix("event: "))
                    if len(self.heard) == 1 and then is not None:
                        await asyncio.to_thread(then)
                    if len(self.heard) == enough:
                        done.set()

        stream = asyncio.create_task(self.visitor.site(scope, receive, send))
        await asyncio.wait_for(stream, 60)
        return self.heard


async def test_run_stream_reports_changes_and_the_end(shop, open_visitor, monkeypatch):
    monkeypatch.setattr("holdfast.web.api.live.POLL_INTERVAL_S", 0.01)
    run = await shop.add.aenqueue(1, 2)
    heard = await Listener(open_visitor, f"/api/v1/runs/{run.id}/live").hear(3, shop.drain)
    assert (heard[0], heard[1], heard[-1]) == ("now", "changed", "over")


async def test_list_stream_reports_new_runs(shop, open_visitor, monkeypatch):
    monkeypatch.setattr("holdfast.web.api.live.POLL_INTERVAL_S", 0.01)
    heard = await Listener(open_visitor, "/api/v1/live").hear(2, lambda: shop.add.enqueue(1, 2))
    assert heard == ["now", "changed"]


def test_number_of_listeners_is_bounded(open_visitor, monkeypatch):
    monkeypatch.setattr("holdfast.web.api.live.MAX_LISTENERS", 0)
    assert open_visitor.get("/api/v1/live").status == 503
