"""`show` of durable functions, and how other commands show them."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, Retry, Secret
from tests.cli.test_all_commands import on_a_terminal
from tests.support.wait_until import wait_until

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def story(shell, voyages, id):
    result = shell("show", id, "--url", voyages.url)
    assert result.exit_code == 0
    return result.stdout.partition("\nhistory\n")[2].splitlines()


def fields(shell, voyages, id):
    top = shell("show", id, "--url", voyages.url).stdout.partition("\n\n")[0]
    return dict(re.split(r"  +", line, maxsplit=1) for line in top.splitlines() if not line.startswith(" "))


def words(lines):
    return [line.split() for line in lines]


def test_steps_hang_below_the_attempt_that_made_them_with_times_and_results(shell, voyages):
    lines = story(shell, voyages, voyages.waiting)
    kinds = [line.split()[2] for line in lines if re.match(r"  \d{4}-", line)]
    assert kinds[:2] == ["enqueued", "started"]
    assert kinds[-1] == "waiting"
    (load,) = [line for line in lines if " load " in line]
    assert re.match(r"    \d\d:\d\d:\d\d\.\d{3}  load +[\d.]+ m?s  has undo  \{\"loaded\": ", load)
    assert load.endswith("…"), "a very long result is cut, in a pipe too"
    assert lines.index(load) < next(at for at, line in enumerate(lines) if "map" in line)


def test_children_hang_below_the_call_that_made_them_with_their_states_and_errors(shell, voyages):
    lines = story(shell, voyages, voyages.waiting)
    at = next(at for at, line in enumerate(lines) if "map " in line)
    assert lines[at].endswith("3 children")
    children = shell.json("show", voyages.waiting, "--url", voyages.url)["children"]
    first, broken, why, last = words(lines[at + 1 : at + 5])
    assert [first[0], broken[0], last[0]] == [child["id"] for child in children]
    assert [first[1], broken[1], last[1]] == ["done", "failed", "done"]
    assert " ".join(why) == "RuntimeError: a broken oar"


def test_waits_are_shown_at_the_top_and_at_the_end(shell, voyages):
    told = fields(shell, voyages, voyages.waiting)
    assert told["state"] == "waiting"
    assert re.fullmatch(
        r"a message on topic orders, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(in 59 min\)", told["waiting for"]
    )
    assert told["progress"] == "1 of 4 (25%)  loaded"
    assert story(shell, voyages, voyages.waiting)[-1] == f"    waits for {told['waiting for']}"


def test_resolved_wait_is_shown_until_the_run_resumes(shell, voyages):
    shell("send", voyages.waiting, "orders", "1", "--url", voyages.url)
    assert "resolved" in fields(shell, voyages, voyages.waiting)["waiting for"]
    voyages.work()
    told = fields(shell, voyages, voyages.waiting)["waiting for"]
    assert re.fullmatch(r"event lighthouse-Brest, since .*(ago|now)\)", told)


def test_failure_is_shown_below_its_attempt_and_undone_steps_are_marked(shell, voyages):
    lines = story(shell, voyages, voyages.failed)
    assert any(re.search(r"  load +[\d.]+ m?s  undone  ", line) for line in lines)
    assert any(re.search(r"  undone load ", line) for line in lines)
    at = next(at for at, line in enumerate(lines) if " undoing " in line)
    failure = "StepFailed: step sink failed (error): ValueError: sunk off Scilly, with all hands, in a storm"
    assert lines[at + 1].strip().startswith(failure)
    listed = shell("runs", "--id", voyages.failed, "--url", voyages.url).stdout
    assert f"{failure} that nobody had foreseen when the voyage began\n" in listed
    assert fields(shell, voyages, voyages.failed)["state"] == "failed"


def test_undoing_run_shows_its_final_state(shell, voyages):
    told = fields(shell, voyages, voyages.undoing)
    assert (told["state"], told["will end"]) == ("undoing", "cancelled, when its compensations have run")
    assert "recalled" in told["error"]


def test_a_child_names_its_parent(shell, voyages):
    child = shell.json("show", voyages.waiting, "--url", voyages.url)["children"][0]["id"]
    assert fields(shell, voyages, child)["parent"].startswith(f"{voyages.waiting} (voyage_")


def test_fork_history_names_its_source(shell, voyages):
    fork = shell("fork", voyages.waiting, "--from", "sleep tide", "--url", voyages.url).stdout.strip()
    lines = story(shell, voyages, fork)
    assert f"from run {voyages.waiting} at sleep tide, 3 checkpoints kept" in lines[1]
    assert [line.split()[1] for line in lines[2:5]] == ["load", "map", "join"]


def test_as_json_there_is_everything(shell, voyages):
    told = shell.json("show", voyages.waiting, "--url", voyages.url)
    assert [step["kind"] for step in told["steps"]][:3] == ["step", "map", "join"]
    load = told["steps"][0]
    assert (load["name"], load["undo"], load["undone_at"], len(load["value"]["crates"])) == ("load", True, None, 100)
    assert load["key"].startswith("load-1:")
    (wait,) = told["waits"]
    assert (wait["kind"], wait["name"], wait["outcome"]) == ("message", "orders", None)
    assert wait["due_at"] > wait["since"]
    assert [(child["task"], child["state"]) for child in told["children"]] == [
        (voyages.task.replace("sail", "row"), state) for state in ("done", "failed", "done")
    ]
    assert told["children"][1]["error"]["message"] == "a broken oar"
    assert (told["more_children"], told["ending"], told["restarts"]) == (False, None, 0)
    assert told["progress"] == {"done": 1.0, "total": 4.0, "note": "loaded"}


@pytest.mark.parametrize("columns", [60, 120])
def test_the_tree_fits_a_terminal(shell, voyages, columns):
    for id in (voyages.waiting, voyages.failed):
        code, told = on_a_terminal(shell, "show", str(id), "--url", voyages.url, COLUMNS=str(columns), NO_COLOR="1")
        assert code == 0
        assert "\x1b[3" not in told
        tree = COLOURS.sub("", told).partition("history")[2]
        assert max(map(len, tree.splitlines())) <= columns
        assert all(line == line.rstrip() for line in tree.splitlines())
        assert "├── " in tree
        assert "load" in tree
        for child in shell.json("show", id, "--url", voyages.url)["children"]:
            assert child["id"] in tree
        if id == voyages.failed:
            assert "nobody had foreseen" in " ".join(re.sub(r"[│├└─]", " ", tree).split())


def test_color_is_never_the_only_signal(shell, voyages):
    asked = ("show", str(voyages.waiting), "--url", voyages.url)
    coloured, plain = (on_a_terminal(shell, *asked, **size)[1] for size in ({}, {"NO_COLOR": "1"}))
    assert "\x1b[3" in coloured
    assert "\x1b[3" not in plain
    without_times = re.compile(r"\(.*?\)|\d")
    assert without_times.sub("", COLOURS.sub("", coloured)) == without_times.sub("", COLOURS.sub("", plain))


def test_step_text_cannot_control_the_terminal(shell, voyages):
    for written in (
        on_a_terminal(shell, "show", str(voyages.waiting), "--url", voyages.url)[1],
        shell.run("show", voyages.waiting, "--url", voyages.url).stdout,
    ):
        assert not any(sequence in written for sequence in ("\x1b[2J", "\x1b]0;", "\x07", "\u202e", "\x9b"))
        assert "owned" in written


def test_a_pipe_gets_indentation_and_no_lines(shell, voyages):
    told = shell.run("show", voyages.waiting, "--url", voyages.url).stdout
    assert not set("│─├└┃") & set(told)
    assert "\x1b" not in told


def test_an_ascii_terminal_gets_lines_that_it_can_show(shell, voyages):
    _, written = on_a_terminal(shell, "show", str(voyages.waiting), "--url", voyages.url, PYTHONIOENCODING="ascii")
    assert "\\u251c" not in written
    assert "load" in written


def test_runs_and_queues_tell_of_waiting_and_undoing_runs(shell, voyages):
    for state in ("waiting", "undoing"):
        (run,) = shell.json("runs", "--state", state, "--url", voyages.url)
        assert UUID(run["id"]) == getattr(voyages, state)
    lines = shell("queues", "--url", voyages.url).stdout.splitlines()
    assert lines[1].split()[:6] == ["default", "active", "1", "0", "1", "0"], "undoing is ready to be taken up"
    assert shell.json("queues", "--url", voyages.url)[0]["runs"]["waiting"] == 1


def test_children_that_wait_for_their_siblings_count_as_waiting(shell, empty):
    with Holdfast(empty) as app:

        @app.task(name="fleet")
        async def fleet(ctx: Context) -> None:
            await ctx.map(app.remote("elsewhere.row", queue="fleet"), range(5), concurrency=2)

        fleet.enqueue()
        app.worker().drain(timeout=60)
    lines = shell("queues", "--url", empty).stdout.splitlines()
    assert lines[2].split()[:6] == ["fleet", "active", "2", "0", "3", "0"]


def test_failed_tries_are_shown_below_their_attempt_and_at_the_top_while_the_step_waits(shell, empty):
    with Holdfast(empty) as app:

        async def charge(order: int, card: Secret[str]) -> str:
            raise ConnectionError("refused")

        @app.task(name="order")
        async def order(ctx: Context) -> str:
            step = ctx.options(retry=Retry(max_attempts=3, delay=3600))
            return await step.step(charge, 42, Secret("4711"))

        run = order.enqueue()
        with app.worker():
            wait_until(lambda: [entry.kind for entry in run.history()][-1] == "step_retrying")
            shown = shell("show", run.id, "--url", empty).stdout
            data = shell.json("show", run.id, "--url", empty)
            why = shell("why", run.id, "--url", empty).stdout
            run.cancel()
    assert re.search(
        r"^retrying +step charge, try 1 of 3 failed, next try [-\d]+ [:\d]+ \(in .*\): ConnectionError: refused$",
        shown, re.MULTILINE,
    )  # fmt: skip
    lines = shown.partition("\nhistory\n")[2].splitlines()
    assert [line.split()[2] for line in lines[:2]] == ["enqueued", "started"]
    assert re.fullmatch(r"    [:.\d]{12}  charge  +\d+ ms  try 1 of 3 failed, next try .*", lines[2])
    assert lines[3:] == ["      ConnectionError: refused", '      called with order=42, card="***"']
    (unfinished,) = data["unfinished_steps"]
    assert (unfinished["state"], unfinished["tries"][0]["number"]) == ("retrying", 1)
    assert "step charge failed (ConnectionError: refused); try 2 of 3 begins at " in why


def test_a_run_that_existed_before_it_was_enqueued_is_marked(shell, database_url):
    with Holdfast(database_url) as app:

        @app.task(name="mail")
        def mail(to: str) -> None: ...

        @app.task(name="work")
        async def work(ctx: Context) -> None:
            await ctx.enqueue(mail.options(key="old"), "ada")
            await ctx.enqueue(mail.options(key="new"), "ada")

        old = mail.options(key="old").enqueue("ada")
        run = work.enqueue()
        app.worker().drain(timeout=60)
    lines = shell("show", run.id, "--url", database_url).stdout.splitlines()
    (marked,) = [at for at, line in enumerate(lines) if line.endswith("already existed")]
    assert lines[marked + 1].strip() == str(old.id)
    assert [step["kind"] for step in shell.json("show", run.id, "--url", database_url)["steps"]] == [
        "existing", "enqueue"
    ]  # fmt: skip
