"""A user transaction is retried while the database is full."""

from __future__ import annotations

import apsw
import psycopg
import pytest
import sqlalchemy as sa

from holdfast import Context, Holdfast, SyncContext
from holdfast.engine import services
from holdfast.integrations.sqlalchemy import with_session
from tests.support.durable import drain

FULL = {"sqlite": apsw.FullError("database or disk is full"), "postgres": psycopg.errors.DiskFull("no space left")}


@pytest.fixture(params=["sqlite", "postgres"])
def full(request, monkeypatch):
    monkeypatch.setattr(services, "FIRST_RETRY_PAUSE_S", 0.01)
    return request.param, request.getfixturevalue(f"{request.param}_url")


@pytest.mark.parametrize("plainly", [False, True])
def test_it_is_called_again_and_what_it_wrote_is_there_once(full, plainly):
    kind, url = full
    calls = []

    def insert(connection) -> int:
        calls.append(1)
        connection.execute("create table if not exists notes (n int)")
        connection.execute("insert into notes values (1)")
        if len(calls) < 3:
            raise FULL[kind]
        return len(list(connection.execute("select n from notes")))

    with Holdfast(url) as app:
        if plainly:

            @app.task(name="write")
            def write(ctx: SyncContext) -> int:
                return ctx.transaction(insert, name="insert")
        else:

            @app.task(name="write")
            async def write(ctx: Context) -> int:
                return await ctx.transaction(insert, name="insert")

        run = write.enqueue()
        drain(app)
        assert run.result(timeout=5) == 1
        assert len(calls) == 3
        assert [entry.kind for entry in run.history()].count("started") == 1


def test_errors_are_recognized_through_sqlalchemy(full):
    kind, url = full
    calls = []

    def insert(session) -> int:
        calls.append(1)
        if len(calls) < 3:
            raise sa.exc.OperationalError("insert", {}, FULL[kind])
        return len(calls)

    with Holdfast(url) as app:

        @app.task(name="write")
        async def write(ctx: Context) -> int:
            return await ctx.transaction(with_session(insert), name="insert")

        run = write.enqueue()
        drain(app)
        assert run.result(timeout=5) == 3
