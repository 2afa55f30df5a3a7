"""The kit: an app on a private store, and how tests inspect it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Context, Holdfast, Retry, Secret
from holdfast.control import Control
from holdfast.errors import ConfigError, RunNotFound
from holdfast.model import codec
from holdfast.testing import Kit

app = Holdfast("postgresql://nowhere.invalid/shop", schema="shop")


@app.task(name="send")
def send(to: str, subject: str = "hello") -> str:
    return f"{subject}, {to}"


def greet(name: str) -> str:
    return f"hello {name}"


@app.task(name="welcome")
async def welcome(ctx: Context, name: str) -> str:
    greeting = await ctx.step(greet, name)
    await ctx.enqueue(send, name)
    return greeting


class TestAnAppOfTheUsers:
    @pytest.fixture
    def holdfast_app(self):
        return app

    def test_works_on_a_private_store(self, kit):
        run = welcome.enqueue("ada")
        kit.drain()
        assert kit.app is app
        assert run.result(timeout=0) == "hello ada"
        assert [run.result(timeout=0) for run in kit.enqueued(send)] == ["hello, ada"]

    def test_each_test_starts_with_an_empty_store(self, kit):
        assert app.runs() == []

    async def test_works_in_async_tests(self, kit):
        run = await welcome.aenqueue("ada")
        await kit.adrain()
        assert await run.aresult(timeout=1) == "hello ada"
        kit.assert_enqueued(send, "ada")
        assert [step.label for step in kit.steps(run)] == ["greet", "enqueue send"]

    def test_the_tables_are_in_the_schema_of_the_app(self, kit):
        if kit.app.store.database.dialect.name == "postgres":
            assert kit.app.store.database.dialect.schema == "shop"


@pytest.fixture
def limited(kit):
    kit.app.limit("mail", rate="1/min")

    @kit.app.task(name="mail", limits=["mail"])
    def mail() -> None: ...

    return mail


def test_a_drain_reports_the_ready_runs_that_it_leaves(kit, limited, caplog):
    @kit.app.task(name="paused", queue="paused")
    def paused() -> None: ...

    limited.enqueue()
    left = [limited.enqueue(), paused.enqueue(), kit.app.remote("billing.charge").enqueue()]
    kit._control.queues.pause(["paused"])
    drained = kit.drain()
    assert (drained, type(drained + 1), [each.run for each in drained.left]) == (1, int, left)
    reasons = [each.reason for each in drained.left]
    assert reasons == [
        "limit mail is full: 1 of 1 start used in the last 60 s",
        "queue paused is paused: holdfast resume paused",
        "no task of this name in the app: import its module, or fake it",
    ]
    (record,) = [record for record in caplog.records if "drain left ready runs" in record.getMessage()]
    assert record.levelname == "WARNING"
    assert all(reason in record.getMessage() for reason in reasons)
    kit.clock.advance(minutes=1)
    assert kit.drain() == 1


async def test_a_strict_drain_fails_if_it_leaves_ready_runs(kit, limited):
    assert (await kit.adrain(strict=True)).left == []
    await limited.aenqueue()
    left = await limited.aenqueue()
    with pytest.raises(AssertionError, match=f"drain left 1 ready run:\\n  mail {left.id}: limit mail is full"):
        await kit.adrain(strict=True)


def test_a_drain_does_not_report_runs_that_wait(kit):
    @kit.app.task(name="waits")
    async def waits(ctx: Context) -> None:
        await ctx.sleep(1)

    waits.enqueue()
    waits.options(delay=1).enqueue()
    assert kit.drain(strict=True).left == []


def insert(connection, item: str) -> None:
    connection.execute(f"insert into orders (item) values ('{item}')")


def test_a_transaction_creates_tables_for_the_functions_of_ctx_transaction(kit):
    @kit.app.task(name="order", retry=Retry(max_attempts=1))
    async def order(ctx: Context, item: str) -> None:
        await ctx.transaction(insert, item)

    with kit.transaction() as connection:
        connection.execute("create table orders (item text)")
    run = order.enqueue("rope")
    kit.drain()
    assert run.info().state == "done"
    with pytest.raises(KeyError), kit.transaction() as connection:
        insert(connection, "rolled back")
        raise KeyError
    with kit.transaction() as connection:
        assert [tuple(row) for row in connection.execute("select item from orders")] == [("rope",)]


def test_a_transaction_needs_the_block_of_the_kit(kit):
    with pytest.raises(ConfigError, match="transaction\\(\\) works only inside the kit's with block"):
        with Kit().transaction():
            pass


def test_the_app_has_its_own_store_back_afterwards(tmp_path):
    mine = Holdfast(f"sqlite:///{tmp_path / 'mine.db'}")

    @mine.task(name="work")
    def work() -> str:
        return "done"

    kept = work.enqueue()
    store, url = mine.store, mine.url
    with Kit(mine) as kit:
        work.enqueue()
        kit.drain()
        with pytest.raises(RunNotFound):
            kept.info()
    assert (mine.store, mine.url) == (store, url)
    assert kept.info().state == "ready"
    assert len(mine.runs()) == 1
    mine.close()


def test_the_app_has_its_own_store_back_after_a_failure(tmp_path):
    mine = Holdfast(f"sqlite:///{tmp_path / 'mine.db'}")
    store = mine.store
    with pytest.raises(ZeroDivisionError), Kit(mine):
        raise ZeroDivisionError
    assert mine.store is store


def test_kits_can_be_nested(tmp_path):
    with Kit() as outer:
        mine = outer.app

        @mine.task(name="work")
        def work() -> None: ...

        work.enqueue()
        with Kit(mine) as inner:
            assert inner.enqueued(work) == []
        assert len(outer.enqueued(work)) == 1


def test_limits_are_declared_on_each_new_store(tmp_path):
    mine = Holdfast(f"sqlite:///{tmp_path / 'mine.db'}")
    mine.limit("one", concurrency=1)

    @mine.task(name="work", limits=["one"])
    def work() -> str:
        return "done"

    for _ in range(2):
        with Kit(mine) as kit:
            run = work.enqueue()
            assert [limit.name for limit in Control(mine.store).limits.list()] == ["one"]
            kit.drain()
            assert run.result(timeout=0) == "done"


def test_a_run_is_found_by_positional_and_keyword_arguments(kit):
    task = kit.app.task(name="send")(send.fn)
    run = task.enqueue("ada", subject="hello")
    assert kit.assert_enqueued(task) == run
    assert kit.assert_enqueued(task, "ada") == run
    assert kit.assert_enqueued(task, to="ada", subject="hello") == run
    assert kit.enqueued(task, "ada", "bye") == []
    assert kit.enqueued(task, "bob") == []


def test_a_run_is_found_by_its_options(kit):
    task = kit.app.task(name="send")(send.fn)
    at = kit.clock.now
    plain = task.enqueue("ada")
    urgent = task.options(queue="mail", priority=5, tenant="acme", tags=("a", "b")).enqueue("ada")
    later = task.options(delay=60, unique="one").enqueue("ada")
    assert kit.enqueued(task, "ada") == [plain, urgent, later]
    assert kit.enqueued(task.options(queue="mail")) == [urgent]
    assert kit.enqueued(task.options(priority=5, tenant="acme"), "ada") == [urgent]
    assert kit.enqueued(task.options(tags=("a", "b"))) == [urgent]
    assert kit.enqueued(task.options(delay=60)) == [later]
    assert kit.enqueued(task.options(run_at=at + timedelta(seconds=60))) == [later]
    assert kit.enqueued(task.options(unique="one")) == [later]
    with pytest.raises(ConfigError, match=r"can't be matched by key; only by queue"):
        kit.enqueued(task.options(key="42"))


def test_a_failed_assertion_lists_the_enqueued_runs(kit):
    task = kit.app.task(name="send")(send.fn)
    with pytest.raises(AssertionError, match="no run of send was enqueued, and no other run"):
        kit.assert_enqueued(task)
    for number in range(11):
        task.options(tenant="acme").enqueue(f"bob{number}")
    with pytest.raises(AssertionError) as told:
        kit.assert_enqueued(task.options(priority=2), "ada", subject="bye")
    first, second, *_, last = str(told.value).splitlines()
    assert first == "no run of send with ('ada', subject='bye') and priority=2 was enqueued; its runs are:"
    assert second == "  {'to': 'bob0'} in queue default, priority 0, tenant acme: ready"
    assert last == "  … and 1 more"


def test_steps_are_listed_in_order_with_their_results(kit):
    @kit.app.task(name="welcome")
    async def both(ctx: Context) -> None:
        await ctx.step(greet, "ada")
        await ctx.sleep(1)
        await ctx.step(greet, "bob")

    run = both.enqueue()
    kit.drain()
    assert [(step.label, step.value) for step in kit.steps(run)] == [("greet", "hello ada")]
    kit.clock.advance(seconds=1)
    kit.drain()
    assert [step.label for step in kit.steps(run)] == ["greet", "sleep", "greet"]


def test_drain_needs_the_with_block(tmp_path):
    kit = Kit(Holdfast(f"sqlite:///{tmp_path / 'mine.db'}"))
    with pytest.raises(ConfigError, match="only inside the kit's with block"):
        kit.drain()
    with kit, pytest.raises(ConfigError, match="already in use"):
        kit.__enter__()


def test_a_kit_takes_an_app():
    with pytest.raises(ConfigError, match="takes a Holdfast app, not str"):
        Kit("shop:app")


def test_an_unknown_database_is_refused(run_pytest):
    outcome = run_pytest(
        conftest="import pytest\n@pytest.fixture\ndef holdfast_database():\n    return 'mysql'\n",
        test_it="def test_it(kit): ...\n",
    )
    assert outcome.returncode == 1
    assert 'holdfast_database must return "sqlite" or "postgres", not \'mysql\'' in outcome.stdout


def test_the_unused_plugin_does_not_import_holdfast(run_pytest):
    loaded = "[name for name in sys.modules if name.split('.')[0] == 'holdfast']"
    text = f"import sys\ndef test_it():\n    assert {loaded} == []\n"
    outcome = run_pytest(fork=False, test_it=text)
    assert outcome.returncode == 0, outcome.stdout


def test_payloads_are_stored_with_the_settings_of_the_app(monkeypatch):
    monkeypatch.setattr(codec, "_max_bytes", codec.MAX_PAYLOAD_BYTES)  # which the app raises for its whole process
    mine = Holdfast("sqlite:///:memory:", refuse_above=8_000_000)

    @mine.task(name="weigh")
    def weigh(text: str) -> int:
        return len(text)

    with Kit(mine) as kit:
        run = weigh.enqueue("x" * 3_000_000)
        kit.drain()
        assert run.result(timeout=0) == 3_000_000


def test_a_run_is_found_by_its_secrets(kit):
    @kit.app.task(name="login")
    def login(password: Secret[str], user: str = "ada") -> None: ...

    run = login.enqueue(Secret("tiger"))
    assert kit.assert_enqueued(login, Secret("tiger")) == run
    assert kit.assert_enqueued(login, "tiger", user="ada") == run
    assert kit.enqueued(login, Secret("lion")) == []
    with pytest.raises(AssertionError) as told:
        kit.assert_enqueued(login, Secret("lion"))
    assert "tiger" not in str(told.value)
