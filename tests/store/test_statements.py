"""Every statement of the store is valid on the database it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast.store
from holdfast.database.dialect import PostgresDialect, SqliteDialect
from holdfast.database.statements import Statement, StatementSource, parse_statements, read_sources, render
from holdfast.testing.server import create_database, database_of, drop_database
from tests.support.store_harness import StoreHarness

SOURCES = read_sources("holdfast.store.sql")
DIALECTS = {"postgres": PostgresDialect("holdfast"), "sqlite": SqliteDialect()}
PLANNED = [source for source in SOURCES if "savepoint" not in source.text]


def fits(source, name):
    return source.only in (None, name)


@pytest.mark.parametrize("source", PLANNED, ids=lambda source: f"{source.name}-{source.only or 'both'}")
def test_a_statement_is_understood_by_its_database(source, request):
    """EXPLAIN makes the database parse and plan it."""
    for name, dialect in DIALECTS.items():
        if not fits(source, name):
            continue
        harness = request.getfixturevalue(f"{name}_tables")
        statement = render(source, dialect, limit=8)
        explained = Statement(source.name, f"explain {statement.sql}", statement.parameters)
        line = harness.store.database.connection("client")
        assert line.run(lambda connection, it=explained: connection.execute(it, dict.fromkeys(it.parameters)))


@pytest.fixture(scope="module")
def sqlite_tables(tmp_path_factory):
    yield from _tables(f"sqlite:///{tmp_path_factory.mktemp('statements') / 'holdfast.db'}")


@pytest.fixture(scope="module")
def postgres_tables(postgres_server_url):
    url = create_database(postgres_server_url)
    yield from _tables(url)
    drop_database(postgres_server_url, database_of(url))


def _tables(url):
    harness = StoreHarness(url)
    harness.store.prepare()
    yield harness
    harness.close()


@pytest.mark.parametrize("name", DIALECTS)
def test_no_fragment_or_parameter_is_left_in_a_rendered_statement(name):
    for source in SOURCES:
        if fits(source, name):
            sql = render(source, DIALECTS[name], limit=8).sql
            assert "{" not in sql, source.name
            if name == "postgres":
                assert not re.search(r"(?<!:):[a-z_]", sql), source.name


def test_a_statement_has_one_text_per_database():
    for name in DIALECTS:
        names = [source.name for source in SOURCES if fits(source, name)]
        assert sorted(names) == sorted(set(names))


def test_every_statement_says_what_it_is_for():
    assert [source.name for source in SOURCES if len(source.purpose.split()) < 3] == []


def test_every_statement_is_used():
    """Its name appears in the store's code."""
    code = "".join(path.read_text() for path in Path(holdfast.store.__file__).parent.glob("*.py"))
    assert sorted({source.name for source in SOURCES if f'"{source.name}"' not in code}) == []


def test_a_limit_is_written_into_the_text():
    source = StatementSource("x", None, "", "select 1 limit {limit}")
    assert render(source, DIALECTS["sqlite"], limit=64).sql == "select 1 limit 64"
    with pytest.raises(LookupError, match="needs a limit"):
        render(source, DIALECTS["sqlite"])


def test_an_unknown_fragment_is_a_mistake_that_is_noticed():
    with pytest.raises(AttributeError):
        render(StatementSource("x", None, "", "select {nonsense}"), DIALECTS["sqlite"])


def test_parameters_are_numbered_by_first_use_and_one_name_is_one_number():
    source = StatementSource("x", None, "", "select :b, :a, :b, cast(:a as text)")
    statement = render(source, DIALECTS["postgres"])
    assert (statement.sql, statement.parameters) == ("select $1, $2, $1, cast($2 as text)", ("b", "a"))


def test_a_file_is_split_into_names_purposes_and_dialects():
    text = "-- name: a\n-- What a does,\n-- at length.\nselect 1;\n\n"
    text += "-- name: b\n-- only: sqlite\n-- What b does.\nselect 2\n"
    assert parse_statements(text) == [
        StatementSource("a", None, "What a does, at length.", "select 1"),
        StatementSource("b", "sqlite", "What b does.", "select 2"),
    ]


def test_a_part_is_contained_in_the_statements_that_name_it():
    text = "-- part: rest\n-- What both end with.\nfrom runs\n\n"
    text += "-- name: a\n-- What a does.\nselect 1 {part(rest)}\n\n-- name: b\n-- What b does.\nselect 2 {part(rest)}\n"
    assert [source.text for source in parse_statements(text)] == ["select 1 from runs", "select 2 from runs"]
