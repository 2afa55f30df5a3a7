"""Secrets: visible to tasks, stored in the database, masked everywhere else."""

from __future__ import annotations

import dataclasses
import json

import pytest

from holdfast import Context, Done, Fatal, Graph, Retry, Secret, State
from holdfast.control import Control
from holdfast.errors import BadArguments
from holdfast.model.codec import decode, display_value, encode
from tests.support.durable import drain

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
    with pytest.raises(BadArguments, match="Expected `int`, got `str`"):
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
