"""`tasks` and `enqueue`."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from holdfast import Holdfast
from holdfast.cli.connect import load_app


@pytest.fixture
def url(database_url, monkeypatch):
    monkeypatch.setenv("SHOP_URL", database_url)
    return database_url


@contextmanager
def working(shop):
    """A worker of the app in the background."""
    app = load_app(shop)
    with app.worker():
        yield
    app.close()


def only_run(url):
    with Holdfast(url) as app:
        (run,) = app.runs()
        return run


def test_tasks_are_listed_without_asking_a_database(shell, shop):
    module = shop.partition(":")[0]
    result = shell("tasks", "--app", shop)
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()[1:]}
    assert rows[f"{module}.add"] == ["default", "thread", "10", "-", f"{module}.py:7"]
    assert rows[f"{module}.send"][:5] == ["mail", "loop", "5", "1", "min"]
    told = {task["name"]: task for task in shell.json("tasks", "--app", shop)}
    assert (told["boom"]["max_attempts"], told["boom"]["queue"]) == (1, "default")
    assert [path.name for path in shell.folder.iterdir() if path.suffix == ".db"] == []


def test_an_app_without_tasks_says_how_to_make_one(shell):
    (shell.folder / "bare_app_of_ours.py").write_text("from holdfast import Holdfast\napp = Holdfast()\n")
    result = shell("tasks", "--app", "bare_app_of_ours:app")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "@app.task" in result.stderr
    assert shell.json("tasks", "--app", "bare_app_of_ours:app") == []


def test_enqueue_prints_the_id_of_the_new_run(shell, shop, url):
    module = shop.partition(":")[0]
    result = shell("enqueue", f"{module}.add", "1", "2", "--app", shop)
    assert result.exit_code == 0
    run = only_run(url)
    assert result.stdout == f"{run.id}\n"
    assert (run.task, run.state, run.queue) == (f"{module}.add", "ready", "default")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["ada"], {"to": "ada"}),
        (["ada", "two words"], {"to": "ada", "subject": "two words"}),
        (['"42"'], {"to": "42"}),
        (["--args", '["ada"]'], {"to": "ada"}),
        (["--args", '{"subject": "s", "to": "ada"}'], {"to": "ada", "subject": "s"}),
        (["--", "-x"], {"to": "-x"}),
        (["NaN"], {"to": "NaN"}),
    ],
)
def test_arguments_are_json_where_they_can_be_else_text(shell, shop, url, words, kept):
    assert shell("enqueue", "--app", shop, shop.partition(":")[0] + ".send", *words).exit_code == 0
    told = shell.json("show", only_run(url).id, "--url", url)
    assert told["args"] == kept


def test_options_reach_the_run(shell, shop, url):
    words = ["--queue", "q", "--priority", "-5", "--delay", "2h", "--key", "k", "--unique", "u", "--tenant", "t"]
    name = shop.partition(":")[0] + ".add"
    told = shell.json("enqueue", name, "1", *words, "--tag", "a", "--tag", "b", "--app", shop)
    run = shell.json("show", told["id"], "--url", url)
    assert (run["queue"], run["priority"], run["tenant"], run["tags"], run["unique"]) == ("q", -5, "t", ["a", "b"], "u")
    assert run["state"] == "scheduled"
    assert told["created"] is True
    again = shell.json("enqueue", name, "1", *words, "--tag", "a", "--tag", "b", "--app", shop)
    assert again == {**told, "created": False}, "the key's run"
    again = shell("enqueue", name, "2", "--unique", "u", "--tenant", "t", "--app", shop)
    assert (again.exit_code, again.stdout) == (0, f"{told['id']}\n")
    assert f"no run was created: {told['id']} exists already for --unique u" in again.stderr
    conflict = shell("enqueue", name, "2", *words, "--app", shop)
    assert conflict.exit_code == 2
    assert told["id"] in conflict.stderr


def test_wait_prints_the_result(shell, shop, url):
    with working(shop):
        module = shop.partition(":")[0]
        result = shell("enqueue", f"{module}.add", "1", "2", "--wait", "--app", shop)
        assert (result.exit_code, result.stdout) == (0, "3\n")
        told = shell.json("enqueue", f"{module}.send", "ada", "--app", shop, "--wait", "60")
        assert (told["state"], told["result"], told["error"]) == ("done", "sent hello to ada", None)


def test_a_waited_run_that_fails_is_exit_code_1_and_says_why(shell, shop, url):
    with working(shop):
        result = shell("enqueue", "boom", "so bad", "--wait", "60", "--app", shop)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "ValueError: so bad" in result.stderr
        result = shell("enqueue", "boom", "--wait", "60", "--app", shop, "--json")
        assert result.exit_code == 1
        told = json.loads(result.stdout)
        assert (told["state"], told["error"]["message"]) == ("failed", "bad")


def test_late_result_exits_with_1_and_the_run_continues(shell, shop, url):
    result = shell("enqueue", "boom", "--wait", "0.01", "--app", shop)
    assert result.exit_code == 1
    assert "did not finish within" in result.stderr
    assert only_run(url).state == "ready"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope"], "no task 'nope'"),
        (["bom"], "did you mean boom"),
        (["boom", "--args", "{not json"], "--args is not valid JSON"),
        (["boom", "--args", "42"], "object or array"),
        (["boom", "x", "--args", "[]"], "not both"),
        (["boom", "1"], "like this: '\"42\"'"),
        (["boom", '["a"]'], "an array is one argument: pass all of them with --args"),
        (["boom", "a", "b"], "boom"),
        (["boom", "--args", '{"nope": 1}'], "nope"),
        (["boom", "--priority", "high"], "high"),
        (["boom", "--delay", "later"], "15m"),
        (["boom", "--queue", ""], "queue"),
        (["boom", "--wait", "boom"], "90s"),
    ],
)
def test_invalid_call_prints_one_line_and_stores_nothing(shell, shop, empty, monkeypatch, words, says):
    monkeypatch.setenv("SHOP_URL", empty)
    result = shell("enqueue", *words, "--app", shop)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    with Holdfast(empty) as app:
        assert app.runs() == []


def test_a_name_that_is_not_in_the_code_is_enqueued_with_remote(shell, database_url):
    result = shell("enqueue", "billing.charge", "42", "--remote", "--queue", "billing", "--url", database_url)
    assert result.exit_code == 0, result.stderr
    run = only_run(database_url)
    assert (run.task, run.queue, f"{run.id}\n") == ("billing.charge", "billing", result.stdout)


def test_an_unknown_task_names_remote(shell, shop, url):
    result = shell("enqueue", "billing.charge", "--app", shop)
    assert result.exit_code == 2
    assert "--remote" in result.stderr


def test_a_url_beside_the_app_is_where_the_run_goes(shell, shop, database_url):
    assert shell("enqueue", "boom", "--app", shop, "--url", database_url).exit_code == 0
    assert only_run(database_url).task == "boom"
    assert [path.name for path in shell.folder.iterdir() if path.suffix == ".db"] == []


def test_a_worker_works_at_the_url_if_the_app_does_not_name_its_own(shell, shop, monkeypatch):
    monkeypatch.setenv("SHOP_URL", "sqlite:///own.db")
    result = shell("worker", "--app", shop, "--url", "sqlite:///other.db")
    assert result.exit_code == 2
    assert "sets its own database, sqlite:///own.db" in result.stderr
