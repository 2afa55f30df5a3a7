"""The page of a schedule: past and next slots, and everything an operator can do with it."""

from __future__ import annotations

import re
from datetime import timedelta

from tests.support.web import Answer, Visitor


def submit(visitor: Visitor, **form: str) -> Answer:
    token = re.search(r'name="csrf_token" value="([^"]+)"', visitor.get("/schedules").text)
    assert token is not None
    return visitor.submit("/schedules", {"csrf_token": token[1], **form})


def test_a_created_schedule_is_shown_and_changed(shop, open_visitor):
    name = "report/7 ü"
    shop.app.schedules.create(name, shop.add.request(1, 2), every=3600)
    at, path = "/schedules/report%2F7%20%C3%BC", f"/schedules/{name}"  # servers decode the path
    schedules = open_visitor.get("/schedules").text
    assert f'href="{at}"' in schedules
    assert '<option value="add"></option>' in schedules, "the form offers the tasks that the app declares"
    page = open_visitor.get(path)
    assert page.status == 200
    for words in ("Next slots", "Run now", "Pause", "Backfill", "Edit", "Delete schedule", "created at run time"):
        assert words in page.text
    made = submit(open_visitor, schedule=name, verb="run").headers["location"]
    assert made.startswith("/runs/")
    page = open_visitor.get(path).text
    assert made.partition("?")[0] in page
    assert "operator" in page
    assert submit(open_visitor, schedule=name, verb="pause", back="1").headers["location"] == f"{at}?did=paused"
    assert "None while it is paused." in open_visitor.get(path).text
    assert submit(open_visitor, schedule=name, verb="resume").headers["location"] == "/schedules?did=resumed"
    edited = {
        "cron": "0 8 * * *",
        "tz": "Europe/Oslo",
        "every": "",
        "overlap": "skip",
        "catch_up": "all",
        "jitter": "5",
        "args": "[3, 4]",
    }
    assert submit(open_visitor, schedule=name, verb="edit", **edited).headers["location"].endswith("schedule-changed")
    info = shop.control.schedules.show(name).schedule
    assert (info.cron, info.tz, info.overlap, info.catch_up, info.jitter) == (
        "0 8 * * *",
        "Europe/Oslo",
        "skip",
        "all",
        5,
    )
    page = open_visitor.get(path).text
    assert "skip the slot" in page
    assert "updated by" in page
    assert submit(open_visitor, schedule=name, verb="delete").headers["location"] == "/schedules?did=schedule-deleted"
    assert open_visitor.get(path).status == 404


def test_a_wrong_form_keeps_what_was_entered(shop, open_visitor):
    shop.app.schedules.create("s", shop.add.request(1, 2), cron="0 8 * * *")
    answer = submit(open_visitor, schedule="s", verb="edit", cron="never", tz="UTC", overlap="skip", jitter="0")
    assert answer.status == 422
    assert 'value="never"' in answer.text
    assert 'role="alert"' in answer.text
    answer = submit(open_visitor, schedule="s", verb="backfill", start="soon", end="2026-01-01T00:00")
    assert (answer.status, "the first slot must be a time" in answer.text) == (422, True)
    assert 'value="2026-01-01T00:00"' in answer.text
    assert submit(open_visitor, schedule="x", verb="edit", cron="0 8 * * *").status == 422


def test_slots_are_backfilled(shop, open_visitor):
    shop.app.schedules.create("hourly", shop.add.request(1, 2), every=timedelta(hours=1))
    start = shop.control.schedules.show("hourly").coming[0] - timedelta(hours=3)
    form = {"start": f"{start:%Y-%m-%dT%H:%M:%S}", "end": f"{start + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}"}
    done = submit(open_visitor, schedule="hourly", verb="backfill", **form)
    assert done.headers["location"] == "/schedules/hourly?did=backfilled", done.text
    made = len(shop.app.runs(task="add"))
    assert made in (1, 2)
    again = submit(open_visitor, schedule="hourly", verb="backfill", **form)
    assert again.headers["location"] == "/schedules/hourly?did=nothing-to-backfill"
    assert len(shop.app.runs(task="add")) == made


def test_a_declared_schedule_and_a_trigger_are_shown_without_what_code_decides(shop, open_visitor):
    shop.app.schedule("nightly", shop.add, args=(1, 2), cron="0 3 * * *")

    @shop.app.trigger("mailbox", every=60)
    def poll() -> list[object]:
        return []

    shop.app.schedules.declare()
    page = open_visitor.get("/schedules/nightly").text
    assert "the code of app" in page
    assert "Delete schedule" not in page
    assert ">Edit<" not in page
    page = open_visitor.get("/schedules/mailbox").text
    assert "Poll now" in page
    assert "Not polled yet" in page
    assert "Backfill" not in page


def test_a_token_that_may_only_read_gets_no_buttons(shop):
    shop.app.schedules.create("s", shop.add.request(1, 2), every=60)
    viewer = shop.browser("viewer")
    page = viewer.get("/schedules/s").text
    assert "Run now" not in page
    assert "Next slots" in page
    assert shop.browser("operate", "acme").get("/schedules/s").status == 403
