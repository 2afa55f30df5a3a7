"""Which order failed: keys and arguments in `RunInfo`, in lists and in failure hooks; finding runs by key."""

from __future__ import annotations

import base64
import random
from datetime import UTC, datetime

import pytest

from holdfast import Graph, Holdfast, Retry, RunInfo, Secret
from holdfast.control import Control
from holdfast.errors import ConfigError
from holdfast.model.filters import RunFilter
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.previews import arguments_line, listed_arguments
from tests.support.durable import drain
from tests.support.history_queries import fetch

LATER = datetime(2040, 1, 1, tzinfo=UTC)
TOKEN = "tok-12345"


@pytest.fixture
def charge(app: Holdfast):
    @app.task(name="charge", retry=Retry(max_attempts=1))
    async def charge(order_id: int, card: Secret[str] | None = None, note: str = "") -> int:
        if order_id == 13:
            raise ValueError("declined")
        return order_id

    return charge


def test_info_and_lists_have_key_and_arguments(app, charge):
    run = charge.options(key="order-1", run_at=LATER).enqueue(1, Secret(TOKEN))
    for info in (run.info(), app.runs()[0]):
        assert (info.key, info.due_at) == ("order-1", LATER)
        assert info.args == {"order_id": 1, "card": "***"}
    plain = charge.enqueue(2).info()
    assert (plain.key, plain.due_at, plain.args) == (None, None, {"order_id": 2})
    details = Control(app.store).runs.details(run.id)
    assert (details.info.key, details.info.args, details.args) == ("order-1", {"order_id": 1, "card": "***"}, info.args)
    assert details.options == {}


def test_long_arguments_are_cut_in_lists_and_whole_in_info(app, charge):
    note = "x" * 5_000
    run = charge.enqueue(1, None, note)
    (listed,) = app.runs()
    assert listed.args == '{"order_id":1,"card":null,"note":"' + "x" * 166 + "…"
    assert run.info().args == {"order_id": 1, "card": None, "note": note}
    assert Control(app.store).runs.details(run.id).info.args["note"] == note


def test_lists_read_only_the_size_of_very_long_arguments(app, charge):
    note = base64.b64encode(random.Random(1).randbytes(60_000)).decode()
    charge.enqueue(1, None, note)
    (row,) = app.store.run_list.page(RunFilter(), 10).rows
    (listed,) = app.runs()
    assert row.args is None
    assert listed.args == f"({row.args_bytes:,} bytes)"


def test_the_start_of_long_arguments_shows_no_secret(app, charge):
    charge.enqueue(1, Secret(TOKEN), "x" * 5_000)
    (listed,) = app.runs()
    assert listed.args == '{"order_id":1,"card":"***"…'


@pytest.mark.parametrize("length", range(15, 60, 5))
def test_a_secret_that_is_cut_anywhere_stays_masked(length):
    stored = '{"order_id":1,"card":{"$secret":"' + TOKEN + '"}}'
    shown = listed_arguments(stored[:length], len(stored), Payloads(), PayloadContext("args"))
    assert "tok" not in str(shown)


def test_arguments_that_a_codec_has_encoded_are_decoded(make_app):
    class Reversed:
        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        decode = encode

    app = make_app(codec=Reversed())

    @app.task(name="mail")
    def mail(to: str) -> None: ...

    mail.enqueue("ada")
    mail.enqueue("b" * 5_000)
    long, short = app.runs()
    assert short.args == {"to": "ada"}
    assert long.args.endswith(" bytes)")
    assert [run.args for run in make_app().runs()][1] == "(encoded; this app doesn't have the codec)"


def test_unreadable_arguments_hide_no_run(app, charge):
    run = charge.enqueue(1)
    fetch(app, "update {}runs set args = '{no'")
    assert [info.args for info in app.runs()] == ["(unreadable)"]
    assert run.info().args == "(unreadable)"


def test_failure_hooks_get_key_and_arguments(app, charge):
    failed: list[RunInfo] = []
    app.on_failure(failed.append)
    charge.options(key="order-13").enqueue(13, Secret(TOKEN))
    drain(app)
    ((key, args),) = [(run.key, run.args) for run in failed]
    assert (key, args) == ("order-13", {"order_id": 13, "card": "***"})


def test_runs_are_found_by_key_in_every_task_and_tenant(app, charge):
    @app.task(name="ship")
    def ship(order_id: int) -> None: ...

    first = charge.options(key="order-1").enqueue(1)
    second = charge.options(key="order-1", tenant="acme").enqueue(1)
    third = ship.options(key="order-1").enqueue(1)
    charge.options(key="order-10").enqueue(10)
    assert [run.id for run in app.runs(key="order-1")] == [third.id, second.id, first.id]
    assert [run.id for run in app.runs(key="order-1", tenant="acme")] == [second.id]
    assert [run.id for run in app.runs(key="order-1", task="ship")] == [third.id]
    assert app.runs(key="order-1", state="failed") == []
    assert app.runs(key="order-2") == []
    for wrong in ("", "x" * 501, "a\0b"):
        with pytest.raises(ConfigError, match="key"):
            app.runs(key=wrong)


def test_a_graph_shows_its_key_and_is_found_by_it(app, charge):
    graph = Graph("etl", key="2026-11-18")
    graph.add(charge, 1, name="one")
    run = app.submit(graph)
    assert run.info().key == "2026-11-18"
    assert run.info().args is None
    assert [found.id for found in app.runs(key="2026-11-18")] == [run.id]
    assert run.nodes()["one"].args == {"order_id": 1}


def test_a_fork_has_the_options_but_not_the_key(app, charge):
    run = charge.options(key="order-1", timeout=5).enqueue(1)
    drain(app)
    fork = run.fork()
    assert fork.info().key is None
    assert Control(app.store).runs.details(fork.id).options == {"timeout": 5_000_000}
    assert [found.id for found in app.runs(key="order-1")] == [run.id]


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ({"order_id": 42, "items": ["rope"]}, 'order_id=42, items=["rope"]'),
        ({"*": [1, "two"], "three": None}, '1, "two", three=null'),
        ({"note": "x" * 50}, 'note="xxxxxxxxxxxxxxxxxxxxxxx…'),
        ('{"note":"xx…', '{"note":"xx…'),
        ({}, ""),
        (None, ""),
        ([1], "[1]"),
    ],
)
def test_arguments_are_shown_on_one_short_line(args, line):
    assert arguments_line(args, 30) == line
