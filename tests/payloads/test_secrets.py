"""Secrets: visible to tasks, stored in the database, masked everywhere else."""

from __future__ import annotations

import dataclasses
import enum
import json
import traceback
from typing import Any

import pydantic
import pytest

from holdfast import Context, Done, Fatal, Graph, Retry, Secret, State
from holdfast.control import Control
from holdfast.errors import BadArguments, NotSerializable, PayloadError
from holdfast.model.codec import MaskedDigest, decode, display_value, encode
from holdfast.task.operation_factory import arguments_digest
from tests.support.durable import drain
from tests.support.large_payloads import execute

TOKEN = "tok-12345"


@dataclasses.dataclass
class Login:
    user: str
    password: Secret[str]
    pins: list[Secret[int]]


LOGIN = Login("ada", Secret(TOKEN), [Secret(4711)])


def test_a_secret_shows_a_mask_and_reveals_its_value():
    secret = Secret(TOKEN)
    assert (repr(secret), str(secret), f"{secret}", f"{LOGIN}".count(TOKEN)) == ("Secret(***)", "***", "***", 0)
    assert secret.reveal() == TOKEN
    assert secret == Secret(TOKEN) != Secret("other")
    assert len({secret, Secret(TOKEN)}) == 1


def test_a_secret_keeps_the_type_of_its_value():
    assert decode(encode(LOGIN), Login) == LOGIN
    assert decode('{"user": "ada", "password": "plain", "pins": [1]}', Login).password == Secret("plain")
    assert display_value(encode(LOGIN)) == {"user": "ada", "password": "***", "pins": ["***"]}


def test_tasks_get_the_secret_and_operators_see_the_mask(make_app, stored, caplog):
    app = make_app()

    async def use(login: Login) -> Secret[str]:
        assert login.password.reveal() == TOKEN
        return login.password

    @app.task(name="login", retry=Retry(max_attempts=1))
    async def login(ctx: Context, login: Login) -> Secret[str]:
        kept = await ctx.step(use, login, name="use")
        await ctx.wait_for("go", type=Secret[str])
        return kept

    with caplog.at_level("DEBUG", "holdfast"):
        run = login.enqueue(LOGIN)
        drain(app)
        app.emit("go", Secret(TOKEN))
        drain(app)
    assert run.result() == Secret(TOKEN)
    assert TOKEN in stored(), "the database has it"
    control = Control(app.store, app.registry)
    details = control.runs.details(run.id)
    assert details.args == {"login": {"user": "ada", "password": "***", "pins": ["***"]}}
    assert details.info.result == "***"
    assert {step.value for step in details.steps if step.kind in ("step", "event")} == {"***"}
    assert TOKEN not in repr(details) + repr(control.runs.page()) + repr(run.history()) + caplog.text


def test_errors_show_the_mask(make_app):
    app = make_app()

    @app.task(name="fails", retry=Retry(max_attempts=1))
    def fails(token: Secret[str]) -> None:
        raise Fatal(f"{token} was refused")

    run = fails.enqueue(Secret(TOKEN))
    drain(app)
    assert run.info().error.message == "*** was refused"
    assert TOKEN not in json.dumps([entry.data for entry in run.history()])


def test_the_mask_and_wrong_types_are_rejected(make_app):
    app = make_app()

    @app.task(name="takes")
    def takes(token: Secret[int]) -> None: ...

    with pytest.raises(BadArguments, match="is the mask of a secret: pass its actual value"):
        takes.enqueue("***")
    with pytest.raises(BadArguments, match="the value of a secret isn't a valid `int`"):
        takes.enqueue(Secret("x"))


def test_a_plain_value_for_a_secret_argument_is_stored_as_secret(make_app):
    app = make_app()

    @app.task(name="takes")
    def takes(user: str, *more: Login, token: Secret[str], note: str = "none") -> None: ...

    control = Control(app.store, app.registry)
    login = {"user": "ada", "password": TOKEN, "pins": [1]}
    details = control.runs.details(takes.enqueue("ada", login, token=TOKEN).id)
    assert details.args == {
        "user": "ada", "more": [{"user": "ada", "password": "***", "pins": ["***"]}], "token": "***"
    }  # fmt: skip
    plain, marked = takes.options(key="a"), Secret(TOKEN)
    assert plain.enqueue("ada", token=TOKEN).id == plain.enqueue("ada", token=marked).id
    graph = Graph("graph")
    first = graph.add(app.remote("name"), name="first")
    node = graph.add(takes, first.output, token=TOKEN, name="second")
    run = app.submit(graph)
    assert control.runs.details(run.nodes()[node.name].id).args["token"] == "***"


def test_idempotency_compares_secrets(make_app):
    app = make_app()

    @app.task(name="takes")
    def takes(token: Secret[str]) -> None: ...

    keyed = takes.options(key="once")
    assert keyed.enqueue(Secret(TOKEN)).id == keyed.enqueue(Secret(TOKEN)).id


class Connect(State):
    token: Secret[str]

    async def run(self, ctx: Context) -> Done[str]:
        return Done(str(len(self.token.reveal())))


def test_a_state_field_annotated_as_secret_is_stored_as_secret(make_app):
    app = make_app()
    run = app.machine("connect", Connect).enqueue(Connect(token=TOKEN))  # as a plain string
    assert Control(app.store).runs.details(run.id).args == {"state": "Connect", "fields": {"token": "***"}}
    drain(app)
    assert run.result(timeout=5) == str(len(TOKEN))


def test_a_result_annotated_as_secret_is_stored_as_secret(make_app):
    app = make_app()

    @app.task(name="plain")
    def plain() -> Secret[str]:
        return TOKEN  # as a plain string

    @app.task(name="misfit")
    def misfit() -> Secret[int]:
        return TOKEN

    runs = [plain.enqueue(), misfit.enqueue()]
    drain(app)
    assert Control(app.store).runs.info(runs[0].id).result == "***"
    assert runs[0].result(timeout=5) == Secret(TOKEN)
    assert runs[1].result(timeout=5) == TOKEN, "what doesn't fit is kept as it is"


class Color(enum.Enum):
    RED = "red"


@pytest.mark.parametrize("kind", [Secret[Color], Secret[int], list[Secret[Color]], Secret[dict[str, Color]]])
def test_a_validation_error_inside_a_secret_says_nothing_about_its_value(kind):
    value = {"$secret": {TOKEN: TOKEN} if "dict" in str(kind) else TOKEN}
    with pytest.raises(PayloadError, match="the value of a secret isn't a valid") as raised:
        decode(json.dumps([value] if str(kind).startswith("list") else value), kind)
    assert TOKEN not in "".join(traceback.format_exception(raised.value))


def test_a_model_that_gets_a_secret_by_mistake_does_not_quote_it():
    class Account(pydantic.BaseModel):
        pin: int

    with pytest.raises(PayloadError, match="has secrets, and isn't a valid") as raised:
        decode(encode({"pin": Secret(TOKEN)}), Account)
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(PayloadError, match="input_value='abc'"):
        decode('{"pin": "abc"}', Account)


@pytest.mark.parametrize("inner", [float("nan"), {TOKEN: float("inf")}, {1: 0, "1": TOKEN}, object()])
def test_a_secret_that_json_cannot_hold_is_named_by_its_own_path_only(inner):
    with pytest.raises(NotSerializable, match=r"a secret whose value JSON can't hold at `\$\.login`") as raised:
        encode({"login": Secret(inner)})
    assert TOKEN not in str(raised.value)


def test_secrets_that_no_annotation_names_come_back_as_secrets(make_app):
    app = make_app()
    seen = []

    @app.task(name="echo")
    def echo(value, more=None):  # type: ignore[no-untyped-def]
        seen.extend([value, more])
        return {"inner": [value]}

    @app.task(name="all")
    async def everything(ctx: Context, given: dict[str, Any]) -> Any:
        seen.append(given["key"])
        seen.append(await ctx.step(lambda: [Secret(TOKEN)], name="step"))
        seen.append(await ctx.wait_for("event"))
        seen.append(await ctx.receive("topic"))
        seen.append(await ctx.call(echo, Secret(TOKEN)))
        await ctx.write(Secret(TOKEN))
        return Secret(TOKEN)

    run = everything.enqueue({"key": Secret(TOKEN)})
    drain(app)
    app.emit("event", Secret(TOKEN))
    drain(app)
    run.send("topic", {"a": Secret(TOKEN)})
    drain(app)
    assert run.result() == Secret(TOKEN)
    assert app.get_run(run.id).result() == Secret(TOKEN)
    assert [chunk.data for chunk in run.stream()] == [Secret(TOKEN)]
    assert TOKEN not in repr(seen)
    for value in ([Secret(TOKEN)], Secret(TOKEN), {"a": Secret(TOKEN)}, {"inner": [Secret(TOKEN)]}):
        assert value in seen
    remote = app.remote("echo").enqueue(Secret(TOKEN), more={"x": 1})
    drain(app)
    assert remote.result() == {"inner": [Secret(TOKEN)]}


def test_no_stored_or_shown_key_depends_on_the_value_of_a_secret(make_app):
    """Otherwise all PINs could be tried against it."""
    app = make_app()

    @app.task(name="pay")
    def pay(pin: Secret[str]) -> None: ...

    @app.task(name="all")
    async def everything(ctx: Context, pin: Secret[str], mark: str = "") -> None:
        await ctx.step(pay.fn, pin, name="step")
        await ctx.step(pay.fn, pin, name="step")
        await ctx.undo(pay.fn, pin)
        await ctx.call(pay, pin)
        await ctx.map(pay, [pin])
        await ctx.enqueue(pay, pin)
        inner = Graph("inner")
        inner.add(pay, pin, name="node")
        await ctx.join(await ctx.submit(inner))

    runs = [everything.enqueue(Secret(pin)) for pin in ("0000", "4711")]
    drain(app)
    control = Control(app.store)
    first, second = ([step.key for step in control.runs.steps(run.id)] for run in runs)
    assert first == second
    assert [run.result() for run in runs] == [None, None]
    assert sum("-2:" in key for key in first) >= 7
    digests = [pay.request(Secret(pin)).digests()[0] for pin in ("0000", "4711")]
    assert digests[0] == digests[1]
    assert digests[0].startswith("2:")
    assert pay.request("0000").digests()[0] == digests[0], "a plain value is wrapped first"


def test_steps_with_secrets_that_release_0_1_recorded_are_replayed(make_app, database_url):
    app = make_app()
    calls = []

    def charge(pin: Secret[str]) -> int:
        calls.append(pin)
        return len(calls)

    @app.task(name="order")
    async def order(ctx: Context) -> list[int]:
        first = await ctx.step(charge, Secret("4711"), name="charge")
        second = await ctx.step(charge, Secret("4711"), name="charge")
        await ctx.wait_for("go")
        return [first, second]

    run = order.enqueue()
    drain(app)
    key = next(step.key for step in Control(app.store).runs.steps(run.id) if step.name.endswith("charge"))
    digest = arguments_digest("charge", (Secret("4711"),), {})
    assert isinstance(digest, MaskedDigest)
    assert digest in key
    old = f"replace(key, '{digest}', '{digest.unmasked}')"
    execute(database_url, f"update holdfast_checkpoints set key = {old}", {})
    assert not any(digest in step.key for step in Control(app.store).runs.steps(run.id))
    app.emit("go", None)
    drain(app)
    assert run.result() == [1, 2]
    assert len(calls) == 2


def test_a_limit_by_a_secret_is_refused(make_app):
    app = make_app()
    app.limit("one", concurrency=1, by="pin")
    app.limit("two", concurrency=1, by=lambda pin: [pin])

    for name in ("one", "two"):

        @app.task(name=name, limits=[name])
        def pay(pin: Secret[str]) -> None: ...

        with pytest.raises(BadArguments, match=f"limit {name} of task {name}: by= is a secret") as raised:
            pay.enqueue(Secret("4711"))
        assert "4711" not in str(raised.value)
