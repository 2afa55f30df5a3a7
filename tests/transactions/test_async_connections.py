"""Enqueue in the transaction of the caller's async connection, for every supported library."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from holdfast import KeyConflict
from holdfast.errors import ConfigError
from tests.transactions.libraries import ASYNC, RolledBack, open_async


@pytest.fixture(params=list(ASYNC))
def kind(request):
    return request.param


async def test_a_committed_enqueue_runs(app, note, postgres_url, kind):
    async with open_async(kind, postgres_url) as connection:
        run = await note.options(connection=connection).aenqueue("a")
        assert await app.aruns() == []
    assert await app.worker().adrain(timeout=60) == 1
    assert await run.aresult(timeout=30) == "a"


async def test_a_rolled_back_enqueue_does_not_exist(app, note, postgres_url, kind):
    with pytest.raises(RolledBack):
        async with open_async(kind, postgres_url) as connection:
            await note.options(connection=connection, key="k").aenqueue("a")
            await note.options(connection=connection).aenqueue_many([("b",), ("c",)])
            raise RolledBack
    assert await app.aruns() == []
    async with open_async(kind, postgres_url) as connection:
        await note.options(connection=connection, key="k").aenqueue("other")
    assert len(await app.aruns()) == 1


async def test_keys_unique_names_and_delays_work_there(app, note, postgres_url, kind):
    async with open_async(kind, postgres_url) as connection:
        first = await note.options(connection=connection, key="k").aenqueue("a")
        again = await note.options(connection=connection, key="k").aenqueue("a")
        alone = await note.options(connection=connection, unique="u").aenqueue("b")
        other = await note.options(connection=connection, unique="u").aenqueue("c")
        later = await note.options(connection=connection, delay=3600).aenqueue("d")
        with pytest.raises(KeyConflict):
            await note.options(connection=connection, key="k").aenqueue("other")
    assert first == again
    assert alone == other
    assert (await later.ainfo()).state == "scheduled"


async def test_sixteen_transactions_of_which_half_roll_back_make_one_run(app, note, postgres_url, kind):
    async def one(number: int) -> object:
        try:
            async with open_async(kind, postgres_url) as connection:
                run = await note.options(connection=connection, key="one").aenqueue("a")
                if number % 2:
                    raise RolledBack
            return run.id
        except RolledBack:
            return None

    outcomes = await asyncio.gather(*[one(number) for number in range(16)])
    committed = [outcome for outcome in outcomes if outcome is not None]
    assert len(committed) == 8
    assert [info.id for info in await app.aruns()] == [committed[0]]
    assert len(set(committed)) == 1


async def test_a_blocking_connection_is_refused_by_an_awaited_verb(note, postgres_url):
    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(ConfigError, match=r"blocking connection: use enqueue\(\)"),
    ):
        await note.options(connection=connection).aenqueue("a")


def test_an_async_connection_is_refused_by_a_blocking_verb(note, postgres_url):
    connection = asyncio.run(psycopg.AsyncConnection.connect(postgres_url))
    with pytest.raises(ConfigError, match="aenqueue"):
        note.options(connection=connection).enqueue("a")
    asyncio.run(connection.close())


async def test_asyncpg_without_a_transaction_is_refused(note, postgres_url):
    async with open_async("asyncpg", postgres_url) as connection:
        pass
    with pytest.raises(ConfigError, match="is closed"):
        await note.options(connection=connection).aenqueue("a")
