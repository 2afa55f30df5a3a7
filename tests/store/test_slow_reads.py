"""Reads with a time limit, for processes that serve many requests."""

from __future__ import annotations

import time

import pytest

from holdfast.database import open_database
from holdfast.database.statements import StatementSource, render
from holdfast.errors import StoreUnavailable

ENDLESS = "with recursive n (n) as (select 1 union all select n + 1 from n where n < 2000000000) select count(*) from n"


def test_a_read_that_takes_too_long_is_ended_and_the_next_one_works(database_url):
    database = open_database(database_url, "holdfast")
    database.read_timeout_s = 0.2
    line = database.connection("read")
    endless, short = (
        render(StatementSource("test", None, "", text), database.dialect) for text in (ENDLESS, "select 1")
    )
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        line.run(lambda connection: connection.execute(endless, {}))
    assert time.monotonic() - begun < 60
    assert line.run(lambda connection: connection.execute(short, {})) == [(1,)]
    database.close()


def test_reads_have_a_connection_of_their_own_only_where_they_are_bounded(postgres_url):
    database = open_database(postgres_url, "holdfast")
    assert database.connection("read") is database.connection("client")
    database.read_timeout_s = 5
    assert database.connection("read") is not database.connection("client")
