"""`ask`, `values` and `stream`: talk to a running function from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import AskRejected, Context, Holdfast, Retry


@pytest.fixture
def counter(database_url: str) -> Any:
    with Holdfast(database_url) as app:

        @app.task(name="counter")
        async def counter(ctx: Context) -> int:
            total = 0

            async def add(number: int) -> dict[str, int]:
                nonlocal total
                total += number
                await ctx.set("total", total)
                return {"total": total}

            def refuse() -> None:
                raise AskRejected("not now", data={"at": 3})

            return await ctx.serve(add=add, refuse=refuse)

        yield app, counter.enqueue(), database_url


def test_a_run_is_asked_from_the_command_line_and_shows_its_values(shell, counter):
    app, run, url = counter
    id = str(run.id)
    assert shell("values", id, "--url", url).stderr == "the run has set no values\n"
    late = shell("ask", id, "add", "1", "--key", "k", "--timeout", "0", "--url", url)
    assert (late.exit_code, late.stdout) == (1, "")
    again = f"holdfast ask {id} add PAYLOAD --key k"
    assert late.stderr == f"no answer within 0 s; to get it, ask again with the same key and payload: {again}\n"
    assert "asks" in shell("show", id, "--url", url).stdout
    with app.worker():
        assert shell("ask", id, "add", "1", "--key", "k", "--url", url).stdout == '{"total": 1}\n'
        refused = shell("ask", id, "refuse", "--url", url)
        assert (refused.exit_code, refused.stderr) == (1, 'rejected: not now  {"at": 3}\n')
        found = shell.json("ask", id, "add", "2", "--by", "ada", "--url", url)
        assert (found["state"], found["reply"]) == ("replied", {"total": 3})
    shown = shell("values", id, "--url", url).stdout
    assert shown.split("\n")[1].split()[:2] == ["total", "3"]
    assert [(each["name"], each["value"]) for each in shell.json("values", id, "--url", url)] == [("total", 3)]
    details = shell("show", id, "--url", url).stdout
    assert "total: 3" in details
    assert "an ask, since" in details
    assert "waiting for an ask" in shell("why", id, "--url", url).stdout
    run.cancel()
    ended = shell("ask", id, "add", "1", "--url", url)
    assert (ended.exit_code, "only unfinished runs answer asks" in ended.stderr) == (2, True)


def test_the_stream_of_a_run_is_printed_and_followed(shell, database_url):
    with Holdfast(database_url) as app:
        calls = []

        @app.task(name="tell")
        async def tell(ctx: Context) -> None:
            async def story() -> None:
                calls.append(1)
                await ctx.write("Once ")
                if len(calls) == 1:
                    raise ConnectionError
                await ctx.write("upon\x1b[31m a time")

            await ctx.write({"title": "A"})
            await ctx.step(story, name="story", retry=Retry(max_attempts=2, delay=0))

        run = tell.enqueue()
        app.worker().drain()
        id = str(run.id)
        printed = shell("stream", id, "--url", database_url).stdout
        assert printed == '{"title": "A"}\nOnce upon\\x1b[31m a time\n'
        followed = shell("stream", id, "--follow", "--url", database_url)
        assert followed.stdout == '{"title": "A"}\nOnce \nOnce upon\\x1b[31m a time\n'
        assert followed.stderr == "step story starts again\n"
        chunks = shell("stream", id, "--follow", "--json", "--after", "2", "--url", database_url).stdout.splitlines()
        assert [json.loads(line)["id"] for line in chunks] == [3, 4]
        first = json.loads(chunks[0])
        assert first["reset"] == {"after": 0, "before": 3, "step": first["step"], "everything": False}
