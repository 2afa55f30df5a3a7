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


ADDED = "    await ctx.step(str, 1, name='note')\n"


ELSEWHERE = "if it belongs to another app, --ignore it"
UNKNOWN = "the code needs the result of step note, which isn't recorded"
WAITS = "the run waits for it, but the code would continue with message telegrams, event lighthouse-Brest"


@pytest.mark.parametrize(
    ("change", "exit_code", "severity", "differences", "summary"),
    [
        (
            ("    await ctx.sleep(0", f"{ADDED}    await ctx.sleep(0"),
            0,
            "harmless",
            ["note: isn't recorded: the code would start it before it continues as recorded"],
            "would differ harmlessly",
        ),
        (
            ('    await ctx.sleep(0, name="tide")\n', ""),
            0,
            "harmless",
            ["sleep tide: is recorded, but no longer in the code"],
            "would differ harmlessly",
        ),
        (
            ("    await ctx.map(", "    if await ctx.step(str, 1, name='note'): pass\n    await ctx.map("),
            3,
            "can't be checked",
            [f"map row: is recorded, but the code does note first, and what follows can't be checked: {UNKNOWN}"],
            "can't be checked",
        ),
        (
            ("[0, 1, 2]", "[0, 1, 3]"),
            4,
            "repeats an effect",
            [
                "map row: the code calls it with other arguments, so it would run again",
                "join row: is recorded, but no longer in the code",
            ],
            "would repeat an effect",
        ),
        (
            ('"orders", timeout', '"telegrams", timeout'),
            5,
            "can't continue",
            [f"message orders: {WAITS}; nothing else wakes the run before its timeout"],
            "can't continue",
        ),
    ],
)
def test_differences_name_their_location_and_severity(
    shell, voyages, deploy, change, exit_code, severity, differences, summary
):
    result = shell("check", "--app", deploy(*change))
    module = voyages.task.partition(".")[0]
    assert result.stdout.replace(f"{module}.row", "row").splitlines() == [
        f"  {voyages.task}  1 unfinished run  {severity}",
        *(f"    {difference}" for difference in differences),
        f"    {voyages.waiting}  waiting",
        f"2 unfinished runs: 1 {summary}, 1 would continue as before",
    ]
    assert result.exit_code == exit_code


def test_a_renamed_step_repeats_an_effect(shell, voyages, deploy):
    app = deploy("ctx.step(load, EVIL", "ctx.step(load, EVIL, name='fill'")
    result = shell("check", "--app", app, "--limit", "1")
    assert result.exit_code == 4
    assert (
        "    load: is recorded, but the code runs fill with the same arguments, so it would run again; if it was "
        'renamed, give it name="load"'
    ) in result.stdout


def test_missing_compensations_are_reported_for_undoing_runs(shell, voyages, deploy):
    result = shell("check", "--app", deploy(", undo=unload"))
    assert result.exit_code == 5
    assert f"{voyages.undoing}  undoing" in result.stdout
    assert "its compensation is no longer in the code" in result.stdout


def test_as_json_there_is_every_run_with_its_findings(shell, voyages, deploy):
    app = deploy('ctx.receive("orders", timeout=3600)', 'ctx.receive("telegrams")')
    result = shell("check", "--app", app, "--json")
    assert result.exit_code == 5
    report = json.loads(result.stdout)
    assert (report["checked"], report["same"], report["unknown"], report["unchecked"]) == (2, 1, {}, [])
    assert (report["severity"], report["elsewhere"]) == ("blocked", {})
    (run,) = report["different"]
    assert (run["id"], run["task"], run["state"]) == (str(voyages.waiting), voyages.task, "waiting")
    (finding,) = run["findings"]
    assert (finding["kind"], finding["where"], finding["key"]) == ("wait", "message orders", "$message:orders#1")
    assert finding["severity"] == run["severity"] == "blocked"


def test_output_of_task_code_goes_to_stderr(shell, voyages, deploy):
    result = shell("check", "--app", deploy(LOADED, f"    print('ahoy')\n{LOADED}"), "--json")
    assert json.loads(result.stdout)["same"] == 2
    assert "ahoy" in result.stderr


def test_hanging_replay_times_out(shell, voyages, deploy):
    app = deploy(LOADED, f"    import asyncio; await asyncio.Event().wait()\n{LOADED}")
    result = shell("check", "--app", app, "--timeout", "0.1", "--limit", "1")
    assert result.exit_code == 3
    assert "within 0.1 s" in result.stdout


def test_a_task_that_was_renamed_without_an_alias_is_found(shell, voyages, deploy):
    new = f"{voyages.task}s"
    app = deploy(f"{RETRY}\nasync def sail", f"@app.task(name='{new}')\nasync def sails")
    result = shell("check", "--app", app)
    assert result.exit_code == 5
    alias = f'aliases=["{voyages.task}"]'
    assert result.stdout.splitlines() == [
        f"  {voyages.task}  2 unfinished runs  can't continue",
        f"    no app declares this task: if its new name is {new}, declare that with {alias}; {ELSEWHERE}",
        "2 unfinished runs: 2 can't continue",
    ]
    assert shell.json("check", "--app", app, "--ignore", "voyage*")["elsewhere"] == {voyages.task: 2}


def test_runs_of_other_apps_are_noted_and_no_failure(shell, voyages, shop):
    result = shell("check", "--app", shop, "--url", voyages.url, "--ignore", "voyage*.sail")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"not checked: 2 unfinished runs of {voyages.task}, a task of another app" in result.stderr


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
    assert report == {
        "severity": None, "checked": 0, "same": 0, "different": [], "unchecked": [], "unknown": {}, "elsewhere": {},
    }  # fmt: skip


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
    assert lines[0] == f"  {voyages.task}  6 unfinished runs  harmless"
    assert lines[-2:] == [
        "    … and 3 more (--json lists all)",
        "6 unfinished runs: 6 would differ harmlessly",
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
