"""Retry with other arguments, change, reschedule and fork runs in the dashboard and over the API."""

from __future__ import annotations

import html
import json
import re

from holdfast import Context, Secret
from tests.support.web import Answer, Visitor


def submit(visitor: Visitor, path: str, form: dict[str, str]) -> Answer:
    return visitor.submit(path, {"csrf_token": visitor.csrf_token(), **form})


def test_a_failed_run_is_retried_with_other_arguments(shop, open_visitor):
    run = shop.boom.enqueue("x")
    shop.drain()
    path = f"/api/v1/runs/{run.id}/retry"
    wrong = open_visitor.post(path, {"args": [1]})
    assert (wrong.status, wrong.json["code"]) == (422, "bad_arguments")
    assert open_visitor.post(path, {"args": {"text": "y"}}).json == {"changed": True}
    assert run.info().args == {"text": "y"}
    again = open_visitor.post(path, {"args": ["z"]})
    assert (again.status, again.json["code"]) == (409, "run_started")
    shop.drain()
    shown = open_visitor.get(f"/runs/{run.id}").text
    assert "New arguments" in shown
    assert "starts over with other arguments" in shown
    answer = submit(open_visitor, f"/runs/{run.id}/retry", {"args": '["w"]'})
    assert (answer.status, answer.headers["location"]) == (303, f"/runs/{run.id}?did=retried")
    assert run.info().args == {"text": "w"}
    bad = submit(open_visitor, f"/runs/{run.id}/retry", {"args": "3"})
    assert (bad.status, "JSON object (by name) or array" in bad.text) == (422, True)


def test_a_run_that_has_not_started_is_changed(shop, open_visitor):
    run = shop.add.options(delay=60).enqueue(1, 2)
    page = open_visitor.get(f"/runs/{run.id}").text
    assert "Change run" in page
    form = {"priority": "4", "run_at": "2030-01-01T08:00", "tags": "night, slow", "args": "[3, 4]"}
    answer = submit(open_visitor, f"/runs/{run.id}/update", form)
    assert answer.headers["location"] == f"/runs/{run.id}?did=updated"
    info = run.info()
    assert (info.priority, info.tags, info.args, info.due_at.isoformat()) == (
        4, ("night", "slow"), {"a": 3, "b": 4}, "2030-01-01T08:00:00+00:00",
    )  # fmt: skip
    assert "priority, time, arguments, tags" in open_visitor.get(f"/runs/{run.id}").text
    empty = submit(open_visitor, f"/runs/{run.id}/update", {"priority": " "})
    assert empty.headers["location"] == f"/runs/{run.id}?did=nothing-given"
    wrong = submit(open_visitor, f"/runs/{run.id}/update", {"priority": "high"})
    assert (wrong.status, "whole number" in wrong.text) == (422, True)
    by_name = open_visitor.post(f"/api/v1/runs/{run.id}/update", {"args": {"a": 5, "b": 6}})
    assert (by_name.status, run.info().args) == (200, {"a": 5, "b": 6})


def test_the_form_shows_current_values_and_changes_only_what_differs(shop, open_visitor):
    run = shop.add.options(delay=3600, priority=3, tags=["night", "slow"]).enqueue(1, 2)
    form = form_values(open_visitor.get(f"/runs/{run.id}").text, f"/runs/{run.id}/update")
    due = run.info().due_at
    assert (form["priority"], form["tags"], form["run_at"]) == ("3", "night, slow", f"{due:%Y-%m-%dT%H:%M:%S}")
    assert json.loads(form["args"]) == {"a": 1, "b": 2}
    same = {**form, "args": form["args"].replace("\n", "\r\n")}
    assert submit(open_visitor, f"/runs/{run.id}/update", same).headers["location"].endswith("nothing-given")

    run.update(priority=9)
    submit(open_visitor, f"/runs/{run.id}/update", {**same, "tags": ""})
    info = run.info()
    assert (info.priority, info.tags, info.due_at) == (9, (), due), "another operator's change stays"
    emptied = submit(open_visitor, f"/runs/{run.id}/update", {**same, "priority": ""})
    assert (emptied.status, "whole number" in emptied.text) == (422, True)
    submit(open_visitor, f"/runs/{run.id}/update", {**same, "args": '{"a": 5, "b": 2}'})
    assert (run.info().args, run.info().priority) == ({"a": 5, "b": 2}, 9)


def test_the_form_has_no_arguments_that_are_masked(shop, open_visitor):
    @shop.app.task(name="pay")
    def pay(card: Secret[str]) -> None: ...

    run = pay.options(delay=3600).enqueue(Secret("4111"))
    form = form_values(open_visitor.get(f"/runs/{run.id}").text, f"/runs/{run.id}/update")
    assert (form["args"], form["was_args"]) == ("", "")


def form_values(page: str, action: str) -> dict[str, str]:
    """Return the fields of a form as a browser would send them."""
    text = page.partition(f'action="{action}"')[2].partition("</form>")[0]
    found = {}
    for tag in re.findall(r"<input[^>]*>", text):
        name, value = re.search(r'name="(\w+)"', tag), re.search(r'value="([^"]*)"', tag)
        found[name[1]] = html.unescape(value[1]) if value else ""
    areas = re.findall(r'<textarea[^>]*name="(\w+)"[^>]*>([^<]*)</textarea>', text)
    return found | {name: html.unescape(value) for name, value in areas}


def test_a_sleeping_run_is_rescheduled(shop, open_visitor):
    @shop.app.task(name="sleeper")
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(3600)

    run, waiting = sleeper.enqueue(), shop.listen.enqueue()
    shop.drain()
    page = open_visitor.get(f"/runs/{run.id}").text
    assert "Reschedule" in page
    assert "Priority <span" not in page
    assert "Reschedule" not in open_visitor.get(f"/runs/{waiting.id}").text
    refused = open_visitor.post(f"/api/v1/runs/{waiting.id}/update", {"run_at": "2020-01-01T00:00:00Z"})
    assert (refused.status, refused.json["code"]) == (409, "run_started")
    submit(open_visitor, f"/runs/{run.id}/update", {"run_at": "2020-01-01T00:00:00"})
    shop.drain()
    assert run.info().state == "done"


def test_a_finished_graph_is_forked(shop, open_visitor):
    run = shop.graph()
    shop.drain()
    assert "A fork is a new run of the same graph" not in open_visitor.get(f"/runs/{run.id}").text
    refused = open_visitor.post(f"/api/v1/runs/{run.id}/fork", {})
    assert (refused.status, refused.json["code"]) == (409, "graph_error")
    run.gate("approve").fail("no")
    shop.drain()
    page = open_visitor.get(f"/runs/{run.id}").text
    assert "nodes that failed, and what depends on them" in page
    made = open_visitor.post(f"/api/v1/runs/{run.id}/fork", {"from_failed": True})
    fork = shop.app.get_run(made.json["id"])
    assert {name: info.state for name, info in fork.nodes().items()} == {
        "extract": "done", "approve": "waiting", "load": "blocked",
    }  # fmt: skip
    answer = submit(open_visitor, f"/runs/{run.id}/fork", {"from_failed": ""})
    again = shop.app.get_run(answer.headers["location"].partition("?")[0].rpartition("/")[2])
    assert {info.state for info in again.nodes().values()} == {"ready", "blocked"}


def test_other_arguments_need_what_a_fork_needs(shop):
    @shop.app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await ctx.join(await ctx.spawn(shop.boom, "x"))

    parent.enqueue()
    shop.drain()
    (child,) = shop.app.runs(task="boom")
    token = shop.control.tokens.create("operate", None, "limited", tasks=["parent"]).token
    visitor = shop.visitor()
    visitor.token = token
    assert visitor.post(f"/api/v1/runs/{child.id}/retry", {"args": ["y"]}).status == 403
    assert visitor.post(f"/api/v1/runs/{child.id}/retry").json == {"changed": True}
