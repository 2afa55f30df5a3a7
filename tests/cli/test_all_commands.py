"""What holds for every command: help, shared options, app and database resolution, errors and output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from holdfast import Holdfast
from holdfast.cli.commands import holdfast
from tests.support.terminal import open_terminal

pytestmark = pytest.mark.no_tables

ROOT = Path(__file__).resolve().parents[2]
VERBS = {
    "completion", "demo", "worker", "tasks", "enqueue", "runs", "show", "cancel", "retry", "update", "fork", "send",
    "resend", "emit", "events", "gate", "workers", "queues", "pause", "resume", "migrate", "prune", "check",
    "schedules", "limits", "why", "stats", "doctor", "roles", "ask", "values", "publish", "topics",
}  # fmt: skip
READING = [
    ["runs"],
    ["find", "x"],
    ["queues"],
    ["schedules"],
    ["events"],
    ["topics"],
    ["limits"],
    ["gate"],
    ["workers"],
    ["stats"],
    ["show", "0199aaaa"],
    ["why", "0199aaaa"],
    ["cancel", "0199aaaa"],
    ["retry", "0199aaaa"],
]
STEERING = [
    ["fork", "0199aaaa"],
    ["update", "0199aaaa", "--priority", "1"],
    ["send", "0199aaaa", "topic"],
    ["ask", "0199aaaa", "name"],
    ["values", "0199aaaa"],
    ["resend", "0199aaaa"],
    ["emit", "event"],
    ["publish", "topic"],
    ["gate", "0199aaaa"],
]
DATABASE = [
    *READING,
    *STEERING,
    ["pause", "q"],
    ["resume", "q"],
    ["schedules", "run", "s"],
    ["events", "clear", "e"],
    ["prune", "--yes"],
    ["migrate", "--check"],
]


def test_all_commands_exist():
    assert set(holdfast.commands) >= VERBS


@pytest.mark.parametrize("verb", sorted(holdfast.commands))
def test_help_says_what_a_command_does_and_gives_an_example(shell, verb):
    result = shell(verb, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"holdfast {verb}" in result.stdout.partition("Examples:")[2].partition("Options:")[0]
    assert all(option.help for option in holdfast.commands[verb].params if isinstance(option, click.Option))
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("verb", sorted(holdfast.commands))
def test_every_command_and_its_options_are_documented(verb):
    page = (ROOT / "docs" / "cli.md").read_text()
    told = [part for part in page.split("\n## ") if f"`{verb}`" in part.partition("\n")[0]]
    assert len(told) == 1, f"docs/cli.md needs one heading with `{verb}`"
    assert f"holdfast {verb}" in told[0].partition("```console")[2]
    shared = {f"--{name}" for name in ("app", "url", "schema", "json", "debug")}
    options = {
        option.opts[0] for command in with_parts(holdfast.commands[verb]) for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    } - shared  # fmt: skip
    assert {option for option in options if option not in told[0]} == set()
    parts = {command.name for command in with_parts(holdfast.commands[verb])} - {verb}
    assert {part for part in parts if f"`{part}" not in told[0]} == set()


def with_parts(command: click.Command) -> list[click.Command]:
    """A command, and those that stand below it, such as `token create`."""
    return [command, *(command.commands.values() if isinstance(command, click.Group) else [])]


def test_no_verb_at_all_shows_the_help_and_is_wrong_usage(shell):
    result = shell()
    assert result.exit_code == 2
    assert "Commands:" in result.stderr
    assert result.stdout == ""


def test_mistyped_command_gets_a_suggestion(shell):
    result = shell("quues")
    assert result.exit_code == 2
    assert "queues" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs", "--nope"], "--nope"),
        (["show"], "RUN"),
        (["cancel"], "RUN"),
        (["pause"], "QUEUE"),
        (["runs", "--state", "finished"], "'done'"),
        (["runs", "--limit", "0"], "1<=x<=1000"),
        (["runs", "--limit", "many"], "many"),
        (["runs", "--watch", "soon"], "90s, 15m"),
        (["prune", "--older-than", "a week"], "7d"),
        (["completion", "tcsh"], "'zsh'"),
        (["enqueue"], "TASK"),
        (["fork"], "RUN"),
        (["fork", "0199aaaa", "--args", "{bad"], "--args is not valid JSON"),
        (["fork", "0199aaaa", "--args", "3"], "JSON object or array"),
        (["retry", "--state", "failed", "--args", "[1]"], "--args needs exactly one RUN"),
        (["update", "0199aaaa"], "Pass what to change"),
        (["update", "0199aaaa", "--run-at", "soon"], "use 2h (from now)"),
        (["send", "0199aaaa"], "TOPIC"),
        (["send", "0199aaaa", "topic", "hello"], """'"hello"'"""),
        (["send", "0199aaaa", "topic", '{"a'], "PAYLOAD is not valid JSON"),
        (["emit"], "EVENT"),
        (["gate", "0199aaaa", "approve", "open"], "'fail'"),
        (["gate", "0199aaaa", "approve", "complete", "{x"], "OUTPUT is not valid JSON"),
        (["emit", "event", "yes"], """'"yes"'"""),
        (["check", "--limit", "0"], "x>=1"),
        (["check", "--timeout", "soon"], "90s, 15m"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_do(shell, words, says):
    result = shell(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"holdfast {words[0]}: ")
    assert says in result.stderr
    assert f"holdfast {words[0]} --help" in result.stderr
    assert result.stderr.count("\n") == 1


# Where the app and the database come from


@pytest.mark.parametrize("words", DATABASE, ids=" ".join)
def test_command_in_an_empty_directory_creates_nothing(shell, words):
    result = shell(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("holdfast: no database given")
    for hint in ("--url", "--app", "$HOLDFAST_URL", "pyproject.toml"):
        assert hint in result.stderr
    assert list(shell.folder.iterdir()) == []


@pytest.mark.parametrize("words", DATABASE, ids=" ".join)
def test_missing_sqlite_file_is_not_created(shell, words):
    result = shell(*words, "--url", "sqlite:///no.db")
    assert result.exit_code == 2
    assert "SQLite file no.db does not exist" in result.stderr
    assert list(shell.folder.iterdir()) == []


@pytest.mark.parametrize("words", [["tasks"], ["worker"], ["enqueue", "x"], ["check"]], ids=" ".join)
def test_a_command_that_needs_the_code_asks_for_the_app(shell, words):
    result = shell(*words)
    assert result.exit_code == 2
    assert "--app module:app" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["runs"], ["queues"], ["workers"]], ids=" ".join)
def test_a_database_without_tables_counts_as_empty_and_stays_so(shell, database_url, words):
    if database_url.startswith("sqlite"):
        Path(database_url.removeprefix("sqlite:///")).touch()
    result = shell(*words, "--url", database_url)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "has no Holdfast tables" in result.stderr
    assert shell.json(*words, "--url", database_url) == []
    assert shell("migrate", "--check", "--url", database_url).exit_code == 1


@pytest.mark.parametrize("words", [["pause", "q"], ["prune", "--yes"], ["emit", "event"]], ids=" ".join)
def test_changing_a_database_without_tables_suggests_migrate(shell, database_url, words):
    if database_url.startswith("sqlite"):
        Path(database_url.removeprefix("sqlite:///")).touch()
    result = shell(*words, "--url", database_url)
    assert result.exit_code == 2
    assert "run `holdfast migrate`" in result.stderr


@pytest.mark.parametrize("words", [["runs"], ["queues"], ["workers"], ["schedules"]], ids=" ".join)
def test_empty_tables_print_nothing_but_a_note(shell, empty, words):
    result = shell(*words, "--url", empty)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("no ")
    assert shell.json(*words, "--url", empty) == []


def test_shared_options_are_taken_before_the_verb_and_after_it(shell, empty):
    for words in (
        ["--url", empty, "--json", "runs"],
        ["runs", "--json", "--url", empty],
        ["--json", "runs", "--url", empty],
    ):
        assert json.loads(shell(*words).stdout) == []
    assert shell("--url", "sqlite:///no.db", "runs", "--url", empty).exit_code == 0, "the later one counts"


def test_the_database_comes_from_the_environment_or_the_default_file(shell, monkeypatch):
    with Holdfast("sqlite:///holdfast.db") as app, Holdfast("sqlite:///other.db") as other:
        here, there = app.remote("here").enqueue(), other.remote("there").enqueue()
    assert [run["id"] for run in shell.json("runs")] == [str(here.id)]
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///other.db")
    assert [run["id"] for run in shell.json("runs")] == [str(there.id)]
    assert [run["id"] for run in shell.json("runs", "--url", "sqlite:///holdfast.db")] == [str(here.id)]


def test_the_app_comes_from_the_environment_or_pyproject(shell, shop, monkeypatch):
    monkeypatch.setenv("SHOP_URL", "sqlite:///shop.db")
    with Holdfast("sqlite:///shop.db") as app:
        id = str(app.remote("x").enqueue().id)
    assert [run["id"] for run in shell.json("runs", "--app", shop)] == [id]
    monkeypatch.setenv("HOLDFAST_APP", shop)
    assert [run["id"] for run in shell.json("runs")] == [id]
    monkeypatch.delenv("HOLDFAST_APP")
    (shell.folder / "pyproject.toml").write_text(f'[tool.holdfast]\napp = "{shop}"\n')
    assert [run["id"] for run in shell.json("runs")] == [id]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere:app", "module 'nowhere' is neither"),
        ("justaname", "write it as module:app"),
        ("broken:app", "ZeroDivisionError"),
        ("json:loads", "must be a Holdfast app"),
        ("json:nothing", "must be a Holdfast app"),
        ("needs:app", "no_such_library"),
    ],
)
def test_unloadable_app_is_reported_in_one_line(shell, target, says):
    (shell.folder / "broken.py").write_text("1 / 0\n")
    (shell.folder / "needs.py").write_text("import no_such_library\n")
    result = shell("tasks", "--app", target)
    sys.modules.pop("broken", None)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


def test_custom_schema_is_found(shell, postgres_url):
    with Holdfast(postgres_url, schema="ours") as app:
        id = str(app.remote("x").enqueue().id)
    assert [run["id"] for run in shell.json("runs", "--url", postgres_url, "--schema", "ours")] == [id]
    assert shell.json("runs", "--url", postgres_url) == []


# How errors and output end


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://x/y", "unsupported database URL"),
        ("jobs.db", "sqlite:///jobs.db"),
        ("postgresql://127.0.0.1:1/x", "cannot connect to"),
    ],
)
def test_unusable_database_is_reported_in_one_line(shell, url, says):
    result = shell("runs", "--url", url)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_password_is_not_shown(shell):
    result = shell("runs", "--url", "postgresql://ada:secret@127.0.0.1:1/x")
    assert "ada" in result.stderr
    assert "secret" not in result.output


def test_file_that_is_not_a_database_is_reported_in_one_line(shell):
    (shell.folder / "letter.db").write_text("Dear Ada, " * 100)
    result = shell("runs", "--url", "sqlite:///letter.db")
    assert result.exit_code == 2
    assert "not a SQLite database" in result.stderr


def test_a_traceback_is_shown_only_with_debug(shell):
    plain = shell.run("runs", "--url", "sqlite:///no.db")
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr
    for words in (["--debug", "runs"], ["runs", "--debug"]):
        told = shell.run(*words, "--url", "sqlite:///no.db")
        assert told.returncode == 1
        assert "Traceback" in told.stderr
        assert "ConfigError: SQLite file" in told.stderr


def test_an_error_of_ours_is_one_line_too(shell, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("of all\nthings \x1b[31m")

    monkeypatch.setattr("holdfast.cli.connect.resolve_target", broken)
    result = shell("runs")
    assert result.exit_code == 1
    assert result.stderr == "holdfast: unexpected RuntimeError: of all things [31m; --debug shows the traceback\n"


def test_closed_pipe_ends_quietly(shell, empty):
    with Holdfast(empty) as app:
        app.enqueue_many([app.remote("shop.add" * 20).request(n) for n in range(1000)])
    process = shell.start("runs", "--limit", "1000", "--url", empty)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("RUN")
    process.stdout.close()
    told = process.stderr.read()
    assert process.wait(30) in (0, 1)
    assert told == ""
    process.stderr.close()


@pytest.mark.parametrize("words", [["queues"], ["queues", "--json"], ["show"], ["--help"]], ids=" ".join)
def test_a_reader_that_is_gone_before_the_first_line_is_no_error(shell, busy, words):
    words = [*words, busy.done] if words == ["show"] else words
    reading, writing = os.pipe()
    os.close(reading)
    process = shell.start(*words, "--url", busy.url, stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode in (0, 1)


def test_ctrl_c_ends_it_quietly(shell, empty):
    process = shell.start(
        "runs", "--watch", "60", "--json", "--url", empty, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "[]\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, "", "")


def on_a_terminal(shell, *words, **environment):
    """What a command writes to a terminal of 150 columns."""
    master, slave = open_terminal()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *words], cwd=shell.folder, stdout=slave, stderr=slave, stdin=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", **environment},
    )  # fmt: skip
    os.close(slave)
    written = b""
    try:
        while chunk := os.read(master, 65536):
            written += chunk
    except OSError:
        pass  # the terminal's other side is closed
    os.close(master)
    return process.wait(30), written.decode()


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
def test_a_terminal_of_any_width_gets_colours_and_whole_ids(shell, busy, columns):
    code, written = on_a_terminal(shell, "runs", "--url", busy.url, COLUMNS=str(columns))
    assert code == 0
    assert "\x1b[31mfailed" in written
    assert "shop.add" in written
    assert all(str(id) in written for id in (busy.done, busy.failed, busy.running, busy.ready, busy.scheduled))


@pytest.mark.parametrize("words", [["runs"], ["queues"], ["workers"], ["show"]], ids=" ".join)
def test_no_color_is_respected(shell, busy, words):
    words = [*words, str(busy.failed)] if words == ["show"] else words
    _, written = on_a_terminal(shell, *words, "--url", busy.url, NO_COLOR="1")
    assert "\x1b[3" not in written
    _, written = on_a_terminal(shell, *words, "--url", busy.url)
    assert "\x1b[3" in written


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("words", [["runs"], ["show"], ["show", "--json"], ["runs", "--json"]], ids=" ".join)
def test_user_text_cannot_control_the_terminal(shell, busy, words, terminal):
    for arguments in [[str(busy.failed)], [str(busy.ready)]] if words[0] == "show" else [[]]:
        call = [words[0], *arguments, *words[1:], "--url", busy.url]
        written = on_a_terminal(shell, *call)[1] if terminal else shell.run(*call).stdout
        for sequence in ("\x1b[2J", "\x1b]0;", "\x07", "\u202e", "\x9b"):
            assert sequence not in written
        if words != ["runs"]:
            assert "markup" in written


def test_a_pipe_gets_plain_text_without_colours_or_boxes(shell, busy):
    for words in (["runs"], ["queues"], ["workers"], ["show", str(busy.failed)]):
        told = shell.run(*words, "--url", busy.url)
        assert told.returncode == 0
        assert "\x1b" not in told.stdout
        assert not set("│─┃━╭┌") & set(told.stdout)


def test_an_ascii_terminal_does_not_break_it(shell, busy):
    told = shell.run("show", busy.ready, "--url", busy.url, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert told.returncode == 0
    assert "Traceback" not in told.stderr


def test_help_needs_neither_rich_nor_a_database_driver(shell):
    program = (
        "import sys\nfrom holdfast.cli.commands import holdfast\n"
        "holdfast.main(['runs', '--help'], standalone_mode=False)\n"
        "print([name for name in ('rich', 'psycopg', 'apsw') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_supervised_workers_get_the_options_of_the_worker(shell, shop, monkeypatch):
    started = []

    def supervise(command, *_settings):
        started.append(command(1))
        return 0

    monkeypatch.setattr("holdfast.cli.worker._supervise", supervise)
    words = ["--concurrency", "7", "--threads", "5", "--lease", "9s", "--queues", "a,b", "--fail-fast", "--verbose"]
    assert shell("worker", "--app", shop, "--processes", "2", *words).exit_code == 0
    (command,) = started
    assert command[4:] == [
        "worker", "--concurrency=7", "--threads=5", "--lease=9.000000", "--grace=25.000000",
        "--max-resident=1000", "--log-format=text", "--queues=a,b", "--verbose", "--fail-fast",
    ]  # fmt: skip
