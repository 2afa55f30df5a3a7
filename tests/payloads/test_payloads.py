"""Stored payloads: compression, codecs, size warnings and limits."""

from __future__ import annotations

import os
import re

import pytest

from holdfast import Context, Graph, Holdfast, Retry, RunFailed, State, SyncContext
from holdfast.control import Control
from holdfast.errors import ConfigError, PayloadError, TooLarge
from holdfast.model.codec import ENCODED_PLACEHOLDER
from holdfast.model.payloads import PayloadContext, Payloads
from tests.support.durable import drain

CANARY = "the canary sings"
ONCE = Retry(max_attempts=1)
HERE = PayloadContext("args")


class Scramble:
    """A codec with a key whose output differs every time."""

    def __init__(self, key: int = 7) -> None:
        self._key = key

    def encode(self, data: bytes) -> bytes:
        salt = os.urandom(4)
        return salt + bytes([self._key]) + bytes(byte ^ self._key for byte in data)

    def decode(self, data: bytes) -> bytes:
        if data[4] != self._key:
            raise ValueError("another key")
        return bytes(byte ^ self._key for byte in data[5:])


def keep(connection: object, text: str) -> str:
    return text


def shout(text: str) -> str:
    return text.upper()


class Greet(State):
    text: str

    async def run(self, ctx: Context) -> Part:
        return Part(text=self.text)


class Part(State):
    text: str

    async def run(self, ctx: Context) -> None: ...


def program(app):
    """Declare tasks that use every kind of stored payload."""

    @app.task(name="echo")
    def echo(text: str) -> str:
        return text

    @app.task(name="plain")
    def plain(ctx: SyncContext, text: str) -> str:
        return ctx.step(shout, text)

    @app.task(name="all")
    async def all_of_it(ctx: Context, text: str, again: bool = True) -> list[str]:
        if again:
            await ctx.restart(text, False)
        step = await ctx.step(shout, text)
        kept = await ctx.transaction(keep, text)
        event = await ctx.wait_for("event")
        message = await ctx.receive("topic")
        child = await ctx.call(echo, text)
        both = await ctx.map(plain, [text])
        await ctx.emit("mine", text)
        await ctx.write(text)
        return [step, kept, event, message, child, *both]

    return echo, all_of_it, app.machine("machine", Greet, Part)


def play(app, text):
    """Run the program to its end, suspending at its waits; return the runs."""
    echo, all_of_it, machine = program(app)
    run = all_of_it.enqueue(text)
    graph = Graph("graph")
    first = graph.add(echo, text, name="first")
    gate = graph.gate("gate", after=[first], type=str)
    graph.add(echo, first.output, after=[gate], when=first.output.exists(), name="second")
    graph_run = app.submit(graph)
    moved = machine.enqueue(Greet(text=text))
    drain(app)
    app.emit("event", text)
    run.send("topic", text)
    graph_run.gate("gate").complete(text)
    drain(app)
    return run, graph_run, moved


def check(app, text):
    run, graph_run, moved = play(app, text)
    shouted = text.upper()
    assert run.result(timeout=30) == [shouted, text, text, text, text, shouted]
    assert [chunk.data for chunk in run.stream()] == [text]
    assert graph_run.result(timeout=30) == {"first": text, "gate": text, "second": text}
    assert moved.info().state == "done"
    fork = run.fork(from_step="map plain", args=(text, False))
    drain(app)
    assert fork.result(timeout=30) == run.result()
    assert not graph_run.gate("gate").complete(text), "the same outcome again"
    details = Control(app.store, app.registry).runs.details(run.id)
    assert details.args == {"text": text, "again": False}
    assert [step.value for step in details.steps if step.kind in ("step", "event", "message")] == [
        shouted, text, text, text
    ]  # fmt: skip
    return run


def test_large_payloads_are_compressed_and_small_ones_are_not(make_app, stored):
    app = make_app(compress_above=2000)
    check(app, CANARY + "." * 5000)
    assert "." * 5000 not in stored()
    assert "~z:" in stored()
    check_small = app.remote("echo").enqueue(CANARY)
    assert CANARY in stored()
    assert check_small.info().state == "ready"


def test_incompressible_payloads_stay_uncompressed(make_app):
    noise = os.urandom(4000).hex()
    payloads = Payloads(compress_above=1024)
    assert payloads.unpack(payloads.pack(f'"{noise}"', HERE, "it"), HERE) == f'"{noise}"'
    assert Payloads(compress_above=None).pack(f'"{"a" * 99999}"', HERE, "it")[0] == '"'


def test_every_payload_is_encoded_by_the_codec(make_app, stored):
    app = make_app(codec=Scramble())
    run = check(app, CANARY)
    found = stored()
    assert CANARY not in found
    assert CANARY.upper() not in found
    assert "~c:" in found
    assert run.info().result is not None


def test_reading_without_the_codec_is_reported(make_app):
    app = make_app(codec=Scramble())
    echo, *_ = program(app)
    run = echo.enqueue(CANARY)
    drain(app)
    other = make_app(codec=Scramble(8))
    with pytest.raises(PayloadError, match=r"use the same Holdfast\(codec=…\)"):
        other.get_run(run.id).result()
    control = Control(make_app().store)
    assert control.runs.info(run.id).result == ENCODED_PLACEHOLDER
    assert control.runs.details(run.id).args == ENCODED_PLACEHOLDER
    assert [info.args for info in control.runs.page()] == [ENCODED_PLACEHOLDER]
    assert app.get_run(run.id).result() == CANARY


def test_a_run_that_a_worker_cannot_decode_fails_and_can_be_retried(make_app):
    app = make_app(codec=Scramble())
    echo, *_ = program(app)
    run = echo.enqueue(CANARY)
    wrong = make_app(codec=Scramble(8))
    program(wrong)
    drain(wrong)
    with pytest.raises(RunFailed, match="the payload was written with a codec or key that this app doesn't have"):
        run.result()
    run.retry()
    drain(app)
    assert run.result() == CANARY


@pytest.mark.parametrize("what", ["condition", "argument"])
def test_an_undecodable_output_fails_the_dependent_node(make_app, what):
    """Only that run fails; the worker continues."""
    app, wrong = make_app(codec=Scramble()), make_app()
    echo, *_ = program(app)
    there, *_ = program(wrong)
    graph = Graph("graph")
    first = graph.add(echo, CANARY, name="first")
    second = graph.add(echo.options(queue="others"), CANARY, name="second")
    wants = {"when": first.output == CANARY} if what == "condition" else {}
    graph.add(echo, first.output if what == "argument" else CANARY, after=[second.finished], name="third", **wants)
    run = app.submit(graph)
    app.worker(queues=["default"]).drain(timeout=30)
    beside = there.options(queue="others").enqueue("plain")
    wrong.worker(queues=["others"]).drain(timeout=30)
    assert beside.result() == "plain"
    ends = {name: (node.state, node.error.code if node.error else None) for name, node in run.nodes().items()}
    assert ends == {"first": ("done", None), "second": ("failed", "bad_arguments"), "third": ("failed", "bad_output")}
    told = r"third: the output of node first: the payload was written with a codec or key that this app doesn't have"
    assert re.search(told, run.nodes()["third"].error.message)
    run.retry()
    drain(app)
    assert run.result() == dict.fromkeys(("first", "second", "third"), CANARY)


@pytest.mark.parametrize("codec", [None, Scramble()], ids=["plain", "codec"])
def test_an_early_gate_output_is_packed_like_any_payload(make_app, stored, codec):
    app = make_app(codec=codec, refuse_above=2000)
    echo, *_ = program(app)
    graph = Graph("graph")
    gate = graph.gate("gate", after=[graph.add(echo, "before", name="before")], type=str)
    graph.add(echo, gate.output, name="then")
    run = app.submit(graph)
    with pytest.raises(TooLarge, match="the output of gate: 3,002 bytes of JSON exceed the limit of 2,000"):
        run.gate("gate").complete("a" * 3000)
    assert run.gate("gate").complete(CANARY) is True
    assert run.gate("gate").complete(CANARY) is False, "the same outcome again"
    assert (CANARY in stored()) == (codec is None)
    drain(app)
    assert run.result() == {"before": "before", "gate": CANARY, "then": CANARY}
    assert run.gate("gate").complete(CANARY) is False


def test_a_fork_stores_the_results_of_joined_graphs_encoded(make_app, stored):
    app = make_app(codec=Scramble())
    echo, *_ = program(app)

    @app.task(name="parent")
    async def parent(ctx: Context) -> object:
        inner = Graph("inner")
        inner.add(echo, CANARY, name="node")
        result = await ctx.join(await ctx.submit(inner))
        return [result, await ctx.step(lambda: 1, name="last")]

    run = parent.enqueue()
    drain(app)
    fork = run.fork(from_step="last")
    drain(app)
    assert fork.result() == run.result() == [{"node": CANARY}, 1]
    assert CANARY not in stored()


def test_idempotency_does_not_depend_on_the_codec(make_app):
    app = make_app(codec=Scramble())
    echo, *_ = program(app)
    assert echo.options(key="once").enqueue(CANARY).id == echo.options(key="once").enqueue(CANARY).id


def test_a_codec_does_not_change_a_schedule(make_app, clock, caplog):
    app = make_app(codec=Scramble(), clock=clock)
    echo, *_ = program(app)
    app.schedule("hourly", echo.request(CANARY), every=60)
    drain(app)
    clock.forward(90)
    caplog.clear()
    with caplog.at_level("INFO", "holdfast"):
        drain(app)
    assert "changed" not in caplog.text
    assert [app.get_run(info.id).result() for info in app.runs()] == [CANARY]


def test_size_limits_are_per_app(make_app):
    strict, lax = make_app(refuse_above=2000), make_app(refuse_above=4 * 1024 * 1024)
    with pytest.raises(TooLarge, match="the arguments of task echo: 3,011 bytes of JSON exceed the limit of 2,000"):
        program(strict)[0].enqueue("a" * 3000)
    large = "a" * (3 * 1024 * 1024)
    run = program(lax)[0].enqueue(large)
    drain(lax)
    assert run.result() == large
    with pytest.raises(TooLarge, match="2,097,152"):
        program(make_app())[0].enqueue(large)


@pytest.mark.parametrize(
    "what", ["step", "result", "emit", "write", "transaction"], ids=lambda what: f"of {what}"
)  # fmt: skip
def test_a_too_large_payload_inside_a_run_fails_it(make_app, what):
    app = make_app(refuse_above=2000)

    def grow() -> str:
        return "a" * 3000

    @app.task(name="grows", retry=ONCE)
    async def grows(ctx: Context) -> str | None:
        if what == "step":
            await ctx.step(grow, name="grow")
        elif what == "emit":
            await ctx.emit("large", grow())
        elif what == "write":
            await ctx.write(grow())
        elif what == "transaction":
            await ctx.transaction(keep, grow())
        return grow() if what == "result" else None

    run = grows.enqueue()
    drain(app)
    info = run.info()
    assert info.state == "failed"
    assert "exceed the limit of 2,000" in info.error.message


def test_large_payloads_are_logged_once(make_app, caplog):
    app = make_app(warn_above=2000)
    echo, *_ = program(app)
    echo.enqueue("b" * 1000)
    assert caplog.messages == []
    echo.enqueue("b" * 3000)
    echo.enqueue("b" * 3000)
    (line,) = caplog.messages
    assert line.startswith('large payload payload="the arguments of task echo" bytes=3011 ')


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"refuse_above": 10}, "refuse_above must be a number of bytes from 1,024 to 67,108,864, not 10"),
        ({"warn_above": "1 MB"}, "warn_above must be a number of bytes"),
        ({"compress_above": True}, "compress_above must be a number of bytes"),
        ({"codec": object()}, "codec must have the methods encode"),
    ],
)
def test_invalid_payload_settings_are_rejected(sqlite_url, settings, told):
    with pytest.raises(ConfigError, match=told):
        Holdfast(sqlite_url, **settings)


class Broken:
    def encode(self, data: bytes) -> str:
        return "text"

    def decode(self, data: bytes) -> bytes:
        return data


def test_a_codec_that_returns_no_bytes_is_rejected(sqlite_url):
    with Holdfast(sqlite_url, codec=Broken()) as app, pytest.raises(PayloadError, match="must return bytes, not str"):
        program(app)[0].enqueue("a")
