"""`check`: unfinished runs replayed with changed code."""

from __future__ import annotations

import json
import signal
import sys
from uuid import uuid4

import pytest

from holdfast import Holdfast

pytestmark = pytest.mark.no_tables

LOADED = "    await ctx.progress(1"
RETRY = "@app.task(retry=Retry(max_attempts=1))"


@pytest.fixture
def deploy(shell, voyages):
    """Write a changed version of the module and return its --app."""
    made = []

    def deploy(old: str = "", new: str = "") -> str:
        module = voyages.target.partition(":")[0]
        source = (shell.folder / f"{module}.py").read_text()
        assert old in source
        source = source.replace(old, new) if old else source
        for start in ("def row", "async def sail"):  # under the names that the runs have
            named = f"@app.task(name='{module}.{start.rpartition(' ')[2]}')"
            source = source.replace(f"{RETRY}\n{start}", f"{named}\n{start}")
        made.append(f"next_{uuid4().hex}")
        (shell.folder / f"{made[-1]}.py").write_text(source)
        return f"{made[-1]}:app"

    yield deploy
    for name in made:
        sys.modules.pop(name, None)


def test_code_that_does_the_same_passes(shell, voyages, deploy):
    for app in (voyages.target, deploy()):
        result = shell("check", "--app", app)
        assert (result.exit_code, result.stdout) == (0, "2 unfinished runs would continue as before\n")
        assert result.stderr == ""


def test_differences_name_their_location_and_exit_with_1(shell, voyages, deploy):
    result = shell("check", "--app", deploy('    await ctx.sleep(0, name="tide")\n'))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines == [
        f"  {voyages.task}  1 unfinished run",
        "    sleep tide: is recorded, but no longer in the code",
        f"    {voyages.waiting}  waiting",
        "1 of 2 unfinished runs would behave differently",
    ]


def test_missing_compensations_are_reported_for_undoing_runs(shell, voyages, deploy):
    result = shell("check", "--app", deploy(", undo=unload"))
    assert result.exit_code == 1
    assert f"{voyages.undoing}  undoing" in result.stdout
    assert "its compensation is no longer in the code" in result.stdout


def test_as_json_there_is_every_run_with_its_findings(shell, voyages, deploy):
    app = deploy('ctx.receive("orders", timeout=3600)', 'ctx.receive("telegrams")')
    result = shell("check", "--app", app, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["checked"], report["same"], report["unknown"], report["unchecked"]) == (2, 1, {}, [])
    (run,) = report["different"]
    assert (run["id"], run["task"], run["state"]) == (str(voyages.waiting), voyages.task, "waiting")
    (finding,) = run["findings"]
    assert (finding["kind"], finding["where"], finding["key"]) == ("wait", "message orders", "$message:orders#1")
    assert "message telegrams" in finding["text"]


def test_output_of_task_code_goes_to_stderr(shell, voyages, deploy):
    result = shell("check", "--app", deploy(LOADED, f"    print('ahoy')\n{LOADED}"), "--json")
    assert json.loads(result.stdout)["same"] == 2
    assert "ahoy" in result.stderr


def test_hanging_replay_times_out(shell, voyages, deploy):
    app = deploy(LOADED, f"    import asyncio; await asyncio.Event().wait()\n{LOADED}")
    result = shell("check", "--app", app, "--timeout", "0.1", "--limit", "1")
    assert result.exit_code == 1
    assert "within 0.1 s" in result.stdout


def test_runs_of_other_apps_are_noted_and_no_failure(shell, voyages, shop):
    result = shell("check", "--app", shop, "--url", voyages.url)
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"not checked: 2 unfinished runs of {voyages.task}, which this app doesn't declare" in result.stderr


def test_a_task_can_be_chosen_and_must_be_known(shell, voyages):
    result = shell("check", "--app", voyages.target, "--task", voyages.task, "--limit", "1")
    assert result.stdout == "1 unfinished run would continue as before\n"
    result = shell("check", "--app", voyages.target, "--task", "sial")
    assert result.exit_code == 2
    assert "no task 'sial' in this app" in result.stderr


def test_check_without_unfinished_runs_passes(shell, shop, empty):
    result = shell("check", "--app", shop, "--url", empty)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no unfinished runs of durable functions\n"
    report = shell.json("check", "--app", shop, "--url", empty)
    assert report == {"checked": 0, "same": 0, "different": [], "unchecked": [], "unknown": {}}


def test_database_without_tables_stays_without_tables(shell, shop, database_url):
    if database_url.startswith("sqlite"):
        (shell.folder / "none.db").touch()
        database_url = "sqlite:///none.db"
    result = shell("check", "--app", shop, "--url", database_url)
    assert result.exit_code == 0
    assert "has no Holdfast tables" in result.stderr
    assert shell("migrate", "--check", "--url", database_url).exit_code == 1


def test_runs_with_the_same_difference_are_grouped(shell, voyages, deploy):
    with Holdfast(voyages.url) as app:
        app.enqueue_many([app.remote(voyages.task).request("Kiel") for _ in range(5)])
    voyages.work()
    app = deploy('    await ctx.sleep(0, name="tide")\n')
    lines = shell("check", "--app", app).stdout.splitlines()
    assert lines[0] == f"  {voyages.task}  6 unfinished runs"
    assert lines[-2:] == [
        "    … and 3 more (--json lists all)",
        "6 of 6 unfinished runs would behave differently",
    ]
    assert len(json.loads(shell("check", "--app", app, "--json").stdout)["different"]) == 6


def test_ctrl_c_ends_a_check_quietly(shell, voyages, deploy):
    app = deploy(
        LOADED,
        "    import asyncio, sys; print('begun', file=sys.stderr, flush=True); await asyncio.Event().wait()\n" + LOADED,
    )
    process = shell.start("check", "--app", app, "--timeout", "100")
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, "", "")


def test_error_caused_by_ctrl_c_is_an_interrupt(shell):
    """Python's locks raise an error if an interrupt hits them."""
    code = "try:\n    raise KeyboardInterrupt\nfinally:\n    raise RuntimeError('release unlocked lock')\n"
    (shell.folder / "interrupted.py").write_text(code)
    result = shell.run("check", "--app", "interrupted:app")
    assert (result.returncode, result.stdout, result.stderr.strip()) == (130, "", "")
