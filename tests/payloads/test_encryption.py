"""Encrypted payloads: bound to their place, rotated keys, deleted keys, and attacks by a writer of the tables."""

from __future__ import annotations

import base64
import itertools
from collections import defaultdict

import pytest

from holdfast import Context, Graph, Retry, RunFailed
from holdfast.control import Control
from holdfast.control.doctor import Doctor
from holdfast.errors import (
    ConfigError,
    EncryptionKeyMissing,
    EncryptionKeysUnavailable,
    PayloadAltered,
    PayloadError,
    PayloadUnreadable,
)
from holdfast.integrations import encryption
from holdfast.integrations.encryption import Encryption, Key
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.web import dashboard
from tests.payloads.test_payloads import CANARY, Scramble, check, keep, program, shout
from tests.support.durable import drain
from tests.support.history_queries import fetch
from tests.support.web import Visitor

OLD, NEW = Key("2025", b"o" * 32), Key("2026", b"n" * 32)
HERE = PayloadContext("args", "acme", "run-1")


class KeyStore:
    """Keys per tenant that a test changes."""

    def __init__(self) -> None:
        self.keys: defaultdict[str | None, list[Key]] = defaultdict(list)
        self.broken = False
        self.calls = 0

    def __call__(self, tenant: str | None) -> list[Key]:
        self.calls += 1
        if self.broken:
            raise ConnectionError("s3cret-host is down")
        return self.keys[tenant]


@pytest.fixture
def keys() -> KeyStore:
    found = KeyStore()
    found.keys["acme"] = [Key("acme-1", b"a" * 32)]
    found.keys["umbrella"] = [Key("umbrella-1", b"u" * 32)]
    return found


def fail_first(text: str, calls: list[str]) -> str:
    raise ValueError("no")


def swap(app, column: str, one: object, other: object, table: str = "runs", key: str = "id") -> None:
    """Exchange the values of two rows, as someone who can write to the tables would."""
    values = [fetch(app, f"select {column} from {{}}{table} where {key} = '{row}'")[0][0] for row in (one, other)]
    for row, value in zip((other, one), values, strict=True):
        fetch(app, f"update {{}}{table} set {column} = '{value}' where {key} = '{row}'")


# All payloads, nothing in clear


def test_every_payload_is_encrypted_and_usable(make_app, stored):
    run = check(make_app(codec=Encryption([NEW])), CANARY)
    found = stored()
    assert CANARY not in found
    assert CANARY.upper() not in found
    assert "~a:" in found
    assert run.info().result is not None


def test_payloads_of_a_tenant_are_encrypted_with_its_key(make_app, keys, stored):
    app = make_app(codec=Encryption(keys))
    echo, *_ = program(app)

    @app.task(name="parent", retry=Retry(max_attempts=1))
    async def parent(ctx: Context, text: str) -> list[object]:
        inner = Graph("inner")
        first = inner.add(echo, text, name="first")
        inner.add(echo, first.output, name="second")
        await ctx.write(text)
        kept = await ctx.transaction(keep, text)
        joined = await ctx.join(await ctx.submit(inner))
        event, message = await ctx.wait_for("event"), await ctx.receive("topic")
        return [await ctx.call(echo, text), await ctx.map(echo, [text]), joined, kept, event, message]

    run = parent.options(tenant="acme").enqueue(CANARY)
    graph = Graph("graph", tenant="acme")
    graph.gate("gate", timeout=0.001, on_timeout="complete")
    graph_run = app.submit(graph)
    drain(app)
    assert graph_run.result() == {"gate": None}
    app.emit("event", CANARY, tenant="acme")
    run.send("topic", CANARY)
    drain(app)
    both = {"first": CANARY, "second": CANARY}
    assert run.result() == [CANARY, [CANARY], both, CANARY, CANARY, CANARY]
    fork = run.fork(from_step="map echo")
    drain(app)
    again = fork.fork(from_step="map echo")
    drain(app)
    assert fork.result() == again.result() == run.result()
    assert [chunk.data for chunk in run.stream()] == [CANARY]
    assert CANARY not in stored()
    assert keys.keys.keys() == {"acme", "umbrella"}, "no payload was encrypted without a tenant"


def test_arguments_of_nodes_with_outputs_and_progress_are_encrypted(make_app, keys, stored):
    app = make_app(codec=Encryption(keys))

    @app.task(name="pair")
    def pair(one: str, other: str) -> list[str]:
        return [one, other]

    @app.task(name="first")
    async def first(ctx: Context) -> str:
        await ctx.progress(1, 2, note=CANARY)
        return await ctx.wait_for("go")

    graph = Graph("graph", tenant="acme")
    node = graph.add(first, name="first")
    graph.add(pair, CANARY, node.output, name="second")
    run, forged = app.submit(graph), app.submit(graph)
    drain(app)
    assert run.nodes()["first"].progress.note == CANARY
    assert CANARY not in stored()
    second = forged.nodes()["second"].id
    plan = fetch(app, f"select plan from {{}}runs where id = '{second}'")[0][0]
    plain = plan.replace(plan[plan.index('"~') : plan.index('"', plan.index('"~') + 1) + 1], '{"one":"FORGED"}')
    fetch(app, f"update {{}}runs set plan = '{plain}' where id = '{second}'")
    app.emit("go", "went", tenant="acme")
    drain(app)
    assert run.result()["second"] == [CANARY, "went"]
    assert "stored in clear" in forged.nodes()["second"].error.message


def test_nodes_appended_to_a_graph_of_a_tenant_are_encrypted_for_it(make_app, keys):
    app = make_app(codec=Encryption(keys))
    echo, *_ = program(app)
    graph = Graph("graph", tenant="acme")
    graph.gate("gate", type=str)
    run = app.submit(graph)
    more = Graph("more")
    more.add(echo, CANARY, name="appended")
    run.append(more, key="more")
    run.gate("gate").complete("yes")
    drain(app)
    assert run.result() == {"gate": "yes", "appended": CANARY}


def test_arguments_of_failed_steps_survive_a_fork(make_app, keys):
    app = make_app(codec=Encryption(keys))

    @app.task(name="fails")
    async def fails(ctx: Context) -> str:
        try:
            await ctx.step(fail_first, CANARY, [])
        except Exception:
            return await ctx.step(shout, CANARY)
        return ""

    run = fails.options(tenant="acme").enqueue()
    drain(app)
    fork = run.fork(from_step="shout")
    drain(app)
    control = Control(app.store, app.registry)
    for each in (run, fork):
        failed = control.runs.details(each.id).steps[0]
        assert failed.args == {"text": CANARY, "calls": []}


# Attacks: someone who can write to the tables


def test_swapped_arguments_fail_both_runs(make_app):
    app = make_app(codec=Encryption([NEW]))
    echo, *_ = program(app)
    one, other, healthy = (echo.enqueue(text) for text in ("one", "other", "healthy"))
    swap(app, "args", one.id, other.id)
    drain(app)
    for run in (one, other):
        error = run.info().error
        assert error.code == "unreadable"
        assert "isn't what was stored as args of run" in error.message
    assert healthy.result() == "healthy"
    swap(app, "args", one.id, other.id)
    for run in (one, other):
        run.retry()
    drain(app)
    assert (one.result(), other.result()) == ("one", "other")


def test_swapped_results_are_rejected(make_app):
    app = make_app(codec=Encryption([NEW]))
    echo, *_ = program(app)
    one, other = echo.enqueue("one"), echo.enqueue("other")
    drain(app)
    swap(app, "result", one.id, other.id)
    with pytest.raises(PayloadAltered, match="it was changed, or copied from elsewhere"):
        one.result()
    swap(app, "result", one.id, other.id)
    fetch(app, f"update {{}}runs set args = result where id = '{one.id}'")
    assert "isn't what was stored as args of run" in one.info().args, "nor is another field of the same run accepted"
    assert one.result() == "one"


def test_a_run_that_was_moved_to_another_tenant_is_rejected(make_app):
    """The keys are shared by all tenants: only the context tells them apart."""
    app = make_app(codec=Encryption([NEW]))
    echo, *_ = program(app)
    victim = echo.options(tenant="acme").enqueue(CANARY)
    drain(app)
    fetch(app, f"update {{}}runs set tenant = 'evil' where id = '{victim.id}'")
    info = Control(app.store, app.registry).runs.info(victim.id)
    assert CANARY not in str((info.args, info.result))
    assert "was changed, or copied from elsewhere" in info.result


def test_swapped_steps_events_and_messages_are_rejected(make_app):
    app = make_app(codec=Encryption([NEW]))

    @app.task(name="steps")
    async def steps(ctx: Context) -> str:
        first = await ctx.step(shout, "one")
        await ctx.step(shout, "other")
        await ctx.wait_for("go")
        return first

    @app.task(name="waits", retry=Retry(max_attempts=1))
    async def waits(ctx: Context, kind: str) -> str:
        return await (ctx.wait_for(kind) if kind.startswith("event") else ctx.receive(kind, type=str))

    run, event = steps.enqueue(), waits.enqueue("event-1")
    one, other = waits.enqueue("topic-1"), waits.enqueue("topic-2")
    app.emit("event-1", "one")
    app.emit("event-2", "other")
    one.send("topic-1", "one")
    other.send("topic-2", "other")
    swap(app, "payload", "event-1", "event-2", "events", "name")
    swap(app, "payload", "topic-1", "topic-2", "messages", "topic")
    drain(app)
    names = [name for (name,) in fetch(app, f"select key from {{}}checkpoints where run = '{run.id}' order by n")][:2]
    swap(app, "value", *names, "checkpoints", "key")
    app.emit("go")
    drain(app)
    for failed in (run, event, one, other):
        assert failed.info().state == "failed", failed.task
        assert "was changed, or copied from elsewhere" in failed.info().error.message


@pytest.mark.parametrize("kind", ["step", "random", "event"])
def test_a_payload_replaced_by_one_in_clear_is_rejected(make_app, kind):
    app = make_app(codec=Encryption([NEW]))
    echo, *_ = program(app)

    @app.task(name="steps")
    async def steps(ctx: Context) -> str:
        first = await ctx.step(shout, "one")
        await ctx.wait_for("go")
        return first

    run, durable = echo.enqueue("paid 10"), steps.enqueue()
    done = echo.enqueue("done")
    app.worker().drain(timeout=60)
    run = echo.options(delay=3600).enqueue("paid 10")
    forged = base64.b64encode(b'{"text":"paid 99"}').decode()
    for args in ('{"text":"paid 99"}', f"~:{forged}", f"~zz:{forged}", f"~x:{forged}", "~", "~a:", "~a:SEZFMQ=="):
        fetch(app, f"update {{}}runs set args = '{args}', state = 'ready', finished_at = null where id = '{run.id}'")
        drain(app)
        assert run.info().state == "failed", args
    fetch(app, f"update {{}}runs set result = '\"forged\"' where id = '{done.id}'")
    with pytest.raises(PayloadAltered, match="stored in clear"):
        done.result()
    fetch(app, f"update {{}}checkpoints set value = '\"FORGED\"', kind = '{kind}' where run = '{durable.id}'")
    app.emit("go")
    drain(app)
    assert "stored in clear" in durable.info().error.message


def test_every_byte_of_a_payload_and_every_part_of_its_place_is_authenticated():
    codec = Encryption([NEW])
    data = codec.encode(b"secret", context=HERE)
    assert codec.decode(data, context=HERE) == b"secret"
    for at in range(len(data)):
        for bit in (1, 128):
            forged = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            with pytest.raises(PayloadUnreadable):
                codec.decode(forged, context=HERE)
    for end in range(len(data)):
        with pytest.raises(PayloadUnreadable):
            codec.decode(data[:end], context=HERE)
    parts = [("args", "step"), ("acme", None, ""), ("run-1", None, ""), (None, "", "x")]
    for field, tenant, run, name in itertools.product(*parts):
        elsewhere = PayloadContext(field, tenant, run, name)
        if elsewhere != HERE:
            with pytest.raises(PayloadAltered):
                codec.decode(data, context=elsewhere)


def test_no_nonce_and_no_ciphertext_repeats():
    codec = Encryption([NEW])
    made = {codec.encode(b"same", context=HERE) for _ in range(2000)}
    assert len({data[-4 - 16 - 12 : -4 - 16] for data in made}) == 2000


def test_a_data_key_is_replaced_before_its_nonces_may_collide(monkeypatch):
    monkeypatch.setattr(encryption, "MAX_PER_SALT", 3)
    codec = Encryption([NEW])
    made = [codec.encode(b"same", context=HERE) for _ in range(9)]
    assert len({data[9:25] for data in made}) == 3
    assert all(codec.decode(data, context=HERE) == b"same" for data in made)


# Rotation


def test_keys_are_rotated_while_runs_are_in_flight(make_app):
    def steps(app):
        @app.task(name="steps")
        async def steps(ctx: Context, text: str) -> list[str]:
            first = await ctx.step(shout, text)
            event = await ctx.wait_for("go")
            return [first, event, await ctx.step(shout, event)]

        return steps

    before, after = make_app(codec=Encryption([OLD])), make_app(codec=Encryption([NEW, OLD]))
    steps(after)
    run = steps(before).enqueue(CANARY)
    drain(before)
    after.emit("go", "event")
    drain(after)
    assert after.get_run(run.id).result() == [CANARY.upper(), "event", "EVENT"]
    with pytest.raises(EncryptionKeyMissing, match="key '2026' of runs without a tenant is missing"):
        run.result()
    only_new = make_app(codec=Encryption([NEW]))
    steps(only_new)
    assert only_new.get_run(run.id).result()[1] == "event"
    info = Control(only_new.store, only_new.registry).runs.info(run.id)
    assert "key '2025' of runs without a tenant is missing" in info.args


def test_a_process_finds_a_key_that_another_one_has_rotated_in(keys, monkeypatch):
    monkeypatch.setattr(encryption, "MIN_RELOAD_INTERVAL_S", 0)
    reader, writer = Encryption(keys, refresh_s=3600), Encryption(keys)
    assert reader.decode(writer.encode(b"1", context=HERE), context=HERE) == b"1"
    keys.keys["acme"] = [Key("acme-2", b"b" * 32), *keys.keys["acme"]]
    data = Encryption(keys).encode(b"2", context=HERE)
    assert b"acme-2" in data
    assert reader.decode(data, context=HERE) == b"2"


def test_encryption_is_introduced_with_payloads_in_clear_and_of_another_codec(make_app):
    plain, scrambled = make_app(), make_app(codec=Scramble())
    runs = [program(app)[0].enqueue(CANARY) for app in (plain, scrambled)]
    strict = make_app(codec=Encryption([NEW]))
    program(strict)
    lenient = make_app(codec=Encryption([NEW], accepts_plain=True, previous=Scramble()))
    program(lenient)
    drain(lenient)
    assert [lenient.get_run(run.id).result() for run in runs] == [CANARY, CANARY]
    assert strict.get_run(runs[0].id).result() == CANARY, "the result is encrypted"
    assert "stored in clear" in str(Control(strict.store, strict.registry).runs.info(runs[0].id).args)


# Deleted keys


def test_deleting_the_key_of_a_tenant_shreds_its_payloads_and_no_others(make_app, keys, database_url):
    app = make_app(codec=Encryption(keys, refresh_s=0))
    echo, *_ = program(app)

    @app.task(name="waits")
    async def waits(ctx: Context) -> str:
        await ctx.step(shout, CANARY)
        return await ctx.wait_for("go")

    def start(tenant):
        graph = Graph("graph", tenant=tenant)
        graph.gate("gate", timeout=0.001, on_timeout="complete")
        return [
            echo.options(tenant=tenant).enqueue(CANARY),
            waits.options(tenant=tenant).enqueue(),
            app.submit(graph),
        ]

    done = {tenant: echo.options(tenant=tenant).enqueue(CANARY) for tenant in ("acme", "umbrella")}
    waiting = {tenant: waits.options(tenant=tenant).enqueue() for tenant in ("acme", "umbrella")}
    drain(app)
    ready = {tenant: start(tenant) for tenant in ("acme", "umbrella")}
    for tenant in ("acme", "umbrella"):
        app.emit("go", "went", tenant=tenant)
    del keys.keys["acme"]

    drain(app)
    assert done["umbrella"].result() == CANARY
    assert waiting["umbrella"].result() == "went"
    assert [run.info().state for run in ready["umbrella"]] == ["done", "done", "done"]
    with pytest.raises(EncryptionKeyMissing, match="key 'acme-1' of tenant 'acme' is missing"):
        done["acme"].result()
    for run in (waiting["acme"], *ready["acme"]):
        assert run.info().state == "failed", run.task
    assert waiting["acme"].info().error.code == ready["acme"][0].info().error.code == "unreadable"
    with pytest.raises(EncryptionKeyMissing, match="tenant 'acme' has no key"):
        echo.options(tenant="acme").enqueue("more")
    with pytest.raises(EncryptionKeyMissing):
        app.emit("more", 1, tenant="acme")

    control = Control(app.store, app.registry)
    assert len(list(control.runs.page())) >= 8
    assert CANARY not in str(control.runs.details(done["acme"].id))
    assert control.events.show("go")
    Doctor(app.store, app.registry).examine()
    visitor = Visitor(dashboard(app, unlocked=True))
    for path in ("/", "/runs", f"/runs/{done['acme'].id}", f"/runs/{waiting['acme'].id}", "/gates", "/api/v1/runs"):
        assert visitor.get(path).status == 200, path


def test_a_schedule_of_a_tenant_without_a_key_does_not_stop_others(make_app, keys, clock):
    app = make_app(codec=Encryption(keys, refresh_s=0), clock=clock)
    echo, *_ = program(app)
    for tenant in ("acme", "umbrella"):
        app.schedule(tenant, echo.options(tenant=tenant).request(CANARY), every=60)
    drain(app)
    del keys.keys["acme"]
    clock.forward(90)
    drain(app)
    assert [(info.tenant, info.state) for info in app.runs()] == [("umbrella", "done")]


def test_a_schedule_created_at_run_time_is_encrypted_and_bound_to_its_name(make_app, keys, clock, stored):
    app = make_app(codec=Encryption(keys, refresh_s=0), clock=clock)
    echo, *_ = program(app)
    for name in ("one", "other"):
        app.schedules.create(name, echo.options(tenant="acme").request(f"{CANARY} {name}"), every=60)
    assert CANARY not in stored()
    clock.forward(90)
    drain(app)
    assert sorted(app.get_run(info.id).result() for info in app.runs()) == [f"{CANARY} one", f"{CANARY} other"]
    swap(app, "template", "one", "other", "schedules", "name")
    clock.forward(60)
    drain(app)
    assert len(list(app.runs())) == 2, "swapped arguments create no runs"


def test_a_key_function_that_fails_leaves_the_known_keys_in_use(keys, caplog):
    codec = Encryption(keys, refresh_s=0)
    data = codec.encode(b"1", context=HERE)
    keys.broken = True
    assert codec.decode(data, context=HERE) == b"1"
    assert "s3cret-host" not in caplog.text
    assert "tenant=acme error=ConnectionError" in caplog.text
    with pytest.raises(EncryptionKeysUnavailable, match="tenant 'umbrella' can't be loaded: ConnectionError"):
        codec.encode(b"1", context=PayloadContext("args", "umbrella", "run"))


def test_runs_are_retried_while_the_keys_cannot_be_loaded(make_app, keys):
    echo, *_ = program(make_app(codec=Encryption(keys)))
    run = echo.options(tenant="acme", retry=Retry(max_attempts=3, delay=0)).enqueue(CANARY)
    keys.broken = True
    worker = make_app(codec=Encryption(FailingOnce(keys)))
    program(worker)
    drain(worker)
    assert worker.get_run(run.id).result() == CANARY
    assert [entry.kind for entry in run.history()].count("retrying") == 1


class FailingOnce:
    """Fails at the first call."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys
        self._failed = False

    def __call__(self, tenant: str | None) -> list[Key]:
        if not self._failed:
            self._failed = True
            raise ConnectionError
        self._keys.broken = False
        return self._keys(tenant)


# Copies


def test_a_fork_by_an_app_without_the_codec_is_refused(make_app):
    app, other = make_app(codec=Encryption([NEW])), make_app()
    echo, *_ = program(app)
    run = echo.enqueue(CANARY)
    program(other)
    with pytest.raises(PayloadUnreadable, match="use the same"):
        other.get_run(run.id).fork()
    with pytest.raises(PayloadUnreadable, match="use the same"):
        other.get_run(run.id).fork(args=("other",))
    fork = run.fork(args=("other",))
    drain(app)
    assert fork.result() == "other"


def test_a_debounced_run_gets_the_newest_arguments(make_app, keys):
    app = make_app(codec=Encryption(keys))
    echo, *_ = program(app)
    calls = echo.options(tenant="acme", debounce="d", delay=0.001)
    runs = [calls.enqueue(text) for text in ("first", "second", CANARY)]
    drain(app)
    assert runs[0].result() == CANARY


def test_a_run_that_waits_for_a_unique_name_gets_the_newest_arguments(make_app, keys):
    app = make_app(codec=Encryption(keys))
    echo, *_ = program(app)
    calls = echo.options(tenant="acme", unique="u", if_taken="replace")
    runs = [calls.enqueue(text) for text in ("first", "second", CANARY)]
    drain(app)
    assert runs[0].result() == CANARY


# Settings


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Key("a b", b"x" * 32), "the id of a key must have 1 to 64"),
        (lambda: Key("", b"x" * 32), "the id of a key"),
        (lambda: Key("a", b"x" * 16), "the secret of key 'a' must be 32 bytes"),
        (lambda: Key("a", "not base64!"), "the secret of key 'a' must be 32 bytes"),
        (lambda: Encryption([]), "at least one key"),
        (lambda: Encryption([NEW, Key("2026", b"x" * 32)]), "two keys of Encryption have the same id: 2026, 2026"),
        (lambda: Encryption([b"x" * 32]), "must be a list of Key"),
        (lambda: Payloads(codec=HalfContext()), "give both encode and decode a parameter `context`, or none"),
    ],
)
def test_invalid_settings_are_rejected(make, told):
    with pytest.raises(ConfigError, match=told) as error:
        make()
    assert "xxxx" not in str(error.value)


class HalfContext:
    def encode(self, data: bytes, *, context: PayloadContext) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


def test_keys_are_never_shown():
    key = Key("a", Key.new_secret())
    assert repr(key) == "Key('a', ***)"
    assert Key.new_secret() != Key.new_secret()


def test_a_codec_with_an_optional_second_parameter_gets_the_bytes_only():
    class Leveled:
        def encode(self, data: bytes, level: int = 3) -> bytes:
            return data + bytes([level])

        def decode(self, data: bytes, level: int = 3) -> bytes:
            return data[:-1]

    payloads = Payloads(codec=Leveled())
    stored = payloads.pack("[1]", HERE, "it")
    assert stored.startswith("~c:")
    assert payloads.unpack(stored, PayloadContext("result")) == "[1]"


def test_an_error_of_the_codec_names_the_payload():
    class Failing:
        def encode(self, data: bytes, /, *, context: PayloadContext) -> bytes:
            raise RuntimeError("no")

        def decode(self, data: bytes, /, *, context: PayloadContext) -> bytes:
            raise PayloadUnreadable("custom reason")

    payloads = Payloads(codec=Failing())
    with pytest.raises(PayloadError, match="the arguments of task echo: the codec failed to encode it: RuntimeError"):
        payloads.pack("[1]", HERE, "the arguments of task", "echo")


def test_a_run_with_an_unreadable_result_is_not_reported_as_successful(make_app, keys):
    """A key that is deleted while a run is being executed: the run fails, its result isn't stored in clear."""
    app = make_app(codec=Encryption(keys, refresh_s=0))

    @app.task(name="deletes")
    def deletes() -> str:
        del keys.keys["acme"]
        return CANARY

    run = deletes.options(tenant="acme").enqueue()
    drain(app)
    with pytest.raises(RunFailed, match="tenant 'acme' has no key"):
        run.result()
    assert run.info().error.code == "unreadable"
