"""The app's settings apply to every command: code, limits, codec, sizes and schema."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
from holdfast.control.open import open_control
from tests.payloads.conftest import stored  # noqa: F401

HIDDEN = """
import os
from typing import Any
from holdfast import Context, Done, Graph, Holdfast, State

class Backwards:
    name = "backwards"
    def encode(self, data: bytes) -> bytes:
        return data[::-1]
    def decode(self, data: bytes) -> bytes:
        return data[::-1]

app = Holdfast(os.environ.get("SHOP_URL"), codec=Backwards(), schema=os.environ.get("SHOP_SCHEMA", "holdfast"))
app.limit("one", concurrency=1)

@app.task(name="wait", limits=["one"])
async def wait(ctx: Context, word: str) -> str:
    await ctx.step(str.upper, word)
    return word + await ctx.receive("words", type=str)

@app.task(name="first")
def first(word: str) -> str:
    return word

@app.task(name="last")
def last(word: str, ok: Any) -> str:
    return f"{word} {ok}"

class Greet(State):
    name: str
    async def run(self, ctx: Context) -> Done[str]:
        return Done(f"hello {self.name}")

app.machine("signup", Greet)

def graph() -> Graph:
    graph = Graph("approval")
    one = graph.add(first, "mellon", name="one")
    gate = graph.gate("ok", after=[one])
    graph.add(last, one.output, gate.output, name="two")
    return graph
"""
WORD = "mellon"


@pytest.fixture
def hidden(shell: Any, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of an app with a codec, a limit, a graph and a machine."""
    monkeypatch.setenv("SHOP_URL", database_url)
    module = _module(shell, HIDDEN)
    yield module
    module.app.close()
    sys.modules.pop(module.__name__, None)


def _module(shell: Any, text: str) -> Any:
    name = f"hidden_{uuid4().hex}"
    (shell.folder / f"{name}.py").write_text(text)
    sys.path.insert(0, str(shell.folder))
    return importlib.import_module(name)


def target(module: Any) -> str:
    return f"{module.__name__}:app"


def test_with_the_app_payloads_are_read_and_written_by_its_codec(shell, hidden, stored):  # noqa: F811
    run = hidden.wait.enqueue(WORD)
    hidden.app.worker().drain()
    assert shell.json("show", run.id, "--app", target(hidden))["args"] == {"word": WORD}
    assert WORD not in shell("show", run.id, "--url", hidden.app.url).stdout
    assert shell("check", "--app", target(hidden)).exit_code == 0
    assert shell("send", run.id, "words", '"friend"', "--app", target(hidden)).exit_code == 0
    assert '"friend"' not in stored()
    hidden.app.worker().drain()
    assert run.result(timeout=5) == "mellonfriend"


def test_a_gate_is_completed_where_outputs_are_encoded(shell, hidden):
    run = hidden.app.submit(hidden.graph())
    hidden.app.worker().drain()
    result = shell("gate", run.id, "ok", "complete", "true", "--app", target(hidden))
    assert (result.exit_code, result.stderr) == (0, "")
    hidden.app.worker().drain()
    assert run.result(timeout=5)["two"] == "mellon True"


def test_a_program_gives_the_payloads_of_its_app(shell, hidden):
    run = hidden.wait.enqueue(WORD)
    with open_control(hidden.app.url, payloads=hidden.app.store.payloads) as control:
        assert control.runs.details(run.id).args == {"word": WORD}


def test_an_app_makes_runs_in_another_database_as_in_its_own(shell, hidden, tmp_path):
    other = f"sqlite:///{tmp_path / 'other.db'}"
    result = shell("enqueue", "wait", WORD, "--app", target(hidden), "--url", other)
    assert result.exit_code == 0, result.output
    assert WORD.encode() not in (tmp_path / "other.db").read_bytes()
    with open_control(other, payloads=hidden.app.store.payloads) as control:
        (run,) = control.runs.page()
        assert control.runs.details(run.id).args == {"word": WORD}
        assert [limit.name for limit in control.limits.list()] == ["one"]


def test_machine_is_enqueued_by_state_name_and_fields(shell, hidden):
    given = '{"state": "Greet", "fields": {"name": "Ada"}}'
    for words in ([given], ["--args", given]):
        result = shell("enqueue", "signup", *words, "--app", target(hidden))
        assert result.exit_code == 0, result.output
    hidden.app.worker().drain()
    found = [hidden.app.get_run(run.id).result() for run in hidden.app.runs(task="signup")]
    assert found == ["hello Ada", "hello Ada"]
    wrong = shell("enqueue", "signup", '{"state": "Nope", "fields": {}}', "--app", target(hidden))
    assert wrong.exit_code == 2
    assert 'like Greet(…), or as JSON {"state": "Greet", "fields": {…}}' in wrong.stderr
    wrong = shell("enqueue", "signup", '{"state": "Greet", "fields": {"name": 3}}', "--app", target(hidden))
    assert "Expected `str`, got `int`" in wrong.stderr


def test_the_list_of_tasks_says_where_a_machine_is_defined(shell, hidden):
    (found,) = [each for each in shell.json("tasks", "--app", target(hidden)) if each["name"] == "signup"]
    assert found["defined"].startswith(hidden.__name__)


@pytest.mark.parametrize("command", [("runs",), ("migrate",), ("enqueue", "x", "--remote"), ("dashboard",)])
def test_empty_schema_is_invalid(shell, empty, command):
    """An unset variable in a script must not mean the default schema."""
    result = shell(*command, "--schema", "", "--url", empty)
    assert (result.exit_code, "invalid schema ''" in result.stderr) == (2, True)


def test_empty_app_is_invalid(shell, empty, monkeypatch):
    monkeypatch.setenv("HOLDFAST_APP", "elsewhere:app")
    result = shell("runs", "--app", "", "--url", empty)
    assert (result.exit_code, "'' doesn't name an app" in result.stderr) == (2, True)


class TestSchemas:
    """On PostgreSQL."""

    @pytest.fixture
    def ours(self, shell, postgres_url, monkeypatch):
        monkeypatch.setenv("SHOP_URL", postgres_url)
        monkeypatch.setenv("SHOP_SCHEMA", "ours")
        module = _module(shell, HIDDEN)
        yield module
        module.app.close()
        sys.modules.pop(module.__name__, None)

    def test_the_apps_counts_where_the_url_is_given_too(self, shell, ours):
        made = shell.json("enqueue", "first", "x", "--app", target(ours), "--url", ours.app.url)
        assert [run["id"] for run in shell.json("runs", "--url", ours.app.url, "--schema", "ours")] == [made["id"]]
        found = shell.json("runs", "--app", target(ours), "--url", ours.app.url)
        assert [run["id"] for run in found] == [made["id"]]

    @pytest.mark.parametrize("remote", [[], ["--remote"]])
    def test_options_override_the_app(self, shell, ours, remote):
        url = ours.app.url
        made = shell.json("enqueue", "first", "x", "--app", target(ours), "--schema", "theirs", *remote)
        assert [run["id"] for run in shell.json("runs", "--url", url, "--schema", "theirs")] == [made["id"]]
        assert shell.json("runs", "--url", url, "--schema", "ours") == []

    def test_a_worker_works_in_the_apps_only(self, shell, ours):
        result = shell("--schema", "theirs", "worker", "--app", target(ours))
        assert result.exit_code == 2
        assert "the app sets its own schema, ours: omit --schema" in result.stderr


def test_history_names_operator_of_fork_and_message(shell, voyages):
    shell("send", voyages.waiting, "orders", "1", "--url", voyages.url, "--by", "ada")
    made = shell.json("fork", voyages.failed, "--url", voyages.url)
    with Holdfast(voyages.url) as app:
        assert "ada" in [entry.data.get("by") for entry in app.get_run(voyages.waiting).history() if entry.data]
        assert any("@" in str(entry.data.get("by")) for entry in app.get_run(made["id"]).history() if entry.data)
