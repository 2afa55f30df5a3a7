"""`emit` and `events`: what is awaited and emitted, and in which tenant."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Holdfast


@pytest.fixture
def harbor(database_url: str) -> Any:
    """Two runs that wait for the same event, one of them in a tenant."""
    with Holdfast(database_url) as app:

        @app.task(name="wait")
        async def wait(ctx: Context) -> Any:
            return await ctx.wait_for("paid")

        runs = [wait.options(tenant="acme co").enqueue(), wait.enqueue()]
        app.worker().drain(timeout=30)
        yield database_url, runs, app


def test_emit_says_who_was_waiting_and_warns_of_waiters_in_other_tenants(shell, harbor):
    url, (acme, plain), app = harbor
    result = shell("emit", "paid", "1", "--url", url)
    assert (result.exit_code, result.stdout) == (0, "paid  emitted; 1 run was waiting for it\n")
    assert result.stderr == (
        "warning: 1 run of tenant acme co still waits for paid; "
        "emit it there with: holdfast emit paid --tenant 'acme co'\n"
    )
    app.worker().drain(timeout=30)
    assert (plain.info().state, acme.info().state) == ("done", "waiting")
    told = shell.json("emit", "paid", "--url", url)
    assert told == {"event": "paid", "tenant": None, "first": False, "awaited_elsewhere": ["acme co"]}
    result = shell("emit", "paid", "--tenant", "acme co", "--url", url)
    assert (result.stdout, result.stderr) == ("paid  emitted; 1 run was waiting for it\n", "")
    assert shell("emit", "nobody", "--url", url).stdout == "nobody  emitted; no run was waiting for it\n"


def test_emit_for_a_tenant_warns_of_waiters_without_one(shell, harbor):
    result = shell("emit", "paid", "--tenant", "other", "--url", harbor[0])
    assert result.stdout == "paid  emitted; no run was waiting for it\n"
    assert "1 run without a tenant still waits for paid; emit it there with: holdfast emit paid\n" in result.stderr


def test_events_lists_what_is_awaited_and_what_was_emitted(shell, harbor):
    url, (acme, plain), _app = harbor
    shell("emit", "opened", '{"n": 1}', "--url", url)
    lines = [line.split() for line in shell("events", "--url", url).stdout.splitlines()]
    assert lines[0] == ["AWAITED", "TENANT", "RUNS", "SINCE", "FIRST", "RUN", "TASK"]
    assert {(line[0], line[-2]) for line in lines[1:3]} == {("paid", str(acme.id)), ("paid", str(plain.id))}
    assert lines[3:5] == [[], ["EMITTED", "TENANT", "AT", "PAYLOAD"]]
    assert (lines[5][:2], lines[5][-2:]) == (["opened", "-"], ['{"n":', "1}"])
    told = shell.json("events", "--tenant", "acme co", "--url", url)
    assert ([each["run"] for each in told["awaited"]], told["emitted"]) == ([str(acme.id)], [])


def test_without_events_the_list_says_so(shell, empty):
    result = shell("events", "--url", empty)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no run waits for an event\nno event was emitted\n"


def test_events_show_tells_of_each_tenant(shell, harbor):
    url, (acme, plain), app = harbor
    shell("emit", "paid", "5", "--url", url)
    app.worker().drain(timeout=30)
    blocks = shell("events", "show", "paid", "--url", url).stdout.split("\n\n")
    acmes = next(block for block in blocks if "acme co" in block)
    others = next(block for block in blocks if "acme co" not in block)
    assert f"{acme.id} (wait)" in acmes
    assert "emitted     no" in acmes
    assert "payload     5" in others
    assert str(plain.id) not in others
    nothing = shell("events", "show", "never", "--url", url)
    assert (nothing.exit_code, nothing.stderr) == (0, "never  neither emitted nor awaited\n")
    assert len(shell.json("events", "show", "paid", "never", "--url", url)) == 2


def test_events_clear_forgets_an_emit(shell, harbor):
    url = harbor[0]
    shell("emit", "opened", "--url", url)
    assert shell("events", "clear", "opened", "paid", "--url", url).stdout == (
        "opened  cleared; it can be emitted again\npaid  was not emitted; nothing changed\n"
    )
    assert shell.json("emit", "opened", "--url", url)["first"] is True
    assert shell.json("events", "clear", "opened", "--tenant", "acme co", "--url", url) == [
        {"event": "opened", "tenant": "acme co", "changed": False}
    ]
    assert shell("events", "clear", "--url", url).exit_code == 2
