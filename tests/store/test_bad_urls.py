"""URLs, files and names that can't work: a typed error that a new user understands, and never a password in it."""

from __future__ import annotations

import pytest

from holdfast.database import open_database
from holdfast.database.url import redact_password
from holdfast.errors import ConfigError, HoldfastError, StoreError, StoreUnavailable
from holdfast.store import Store

pytestmark = pytest.mark.no_tables

SECRET = "hunter2"


def opening(url, schema="holdfast"):
    """Return the error of the first use of a database, which must be a HoldfastError."""
    with pytest.raises(HoldfastError) as caught:
        Store(open_database(url, schema)).prepare()
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("url", "telling"),
    [
        ("mysql://u:hunter2@h/db", "unsupported database URL (mysql:)"),
        ("postgresql+pg8000://u:hunter2@h/db", "unsupported database URL (postgresql+pg8000:)"),
        ("postgresql+psycopg:u:hunter2@h/db", "unsupported database URL (postgresql+psycopg:)"),
        ("postgresql+asyncpg://u:hunter2@h:port/db", "port in postgresql://u@h:port/db must be a number"),
        ("jobs.db", "unsupported database URL ('jobs.db'); use sqlite:///jobs.db"),
        ("host=localhost password=hunter2 dbname=x", "may contain a password"),
        ("", "must be a string such as sqlite:///jobs.db"),
        (None, "not NoneType"),
        (5, "not int"),
        ("sqlite:jobs.db", "invalid SQLite URL ('sqlite:jobs.db'); use sqlite:///jobs.db"),
        ("sqlite://jobs.db", "invalid SQLite URL"),
        ("sqlite://u:hunter2@h/db", "invalid SQLite URL"),
        ("sqlite://[x/db", "invalid SQLite URL"),
        ("sqlite:///jobs.db?mode=ro", "invalid SQLite URL"),
        ("sqlite:///", "doesn't name a file"),
        ("sqlite:///folder/", "doesn't name a file"),
        ("sqlite:///a%00b", "doesn't name a file"),
        ("postgresql://u:hunter2@h:port/db", "port in postgresql://u@h:port/db must be a number"),
        ("postgresql://u:hunter2@h:99999/db", "must be a number between 1 and 65535"),
        ("postgresql://u:hunter2@h/db?nonsense=1", 'invalid URI query parameter: "nonsense"'),
        ("postgresql://u:hun/hunter2@h/db", "percent-encode such characters: @ as %40, / as %2F"),
        ("postgresql://u:hun@hunter2@h/db", "percent-encode such characters: @ as %40"),
        ("postgresql://u:100%hunter2@h/db", "% that isn't followed by two hexadecimal digits"),
        ("postgresql://u:hunter2@[::1/db", "invalid PostgreSQL URL"),
        ("postgresql://u:hunter2@h/d\0b", "NUL"),
        ("postgresql://u:hunter2\ud800@h/db", "can't be encoded"),
    ],
)
def test_an_invalid_url_is_rejected_before_anything_is_touched(url, telling):
    with pytest.raises(ConfigError) as caught:
        open_database(url, "holdfast")
    assert telling in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_in_a_missing_folder_is_reported(tmp_path):
    error = opening(f"sqlite:///{tmp_path}/missing/jobs.db")
    assert isinstance(error, ConfigError)
    assert f"the directory of {tmp_path}/missing/jobs.db doesn't exist" in str(error)


def test_a_folder_instead_of_a_file_is_reported(tmp_path):
    error = opening(f"sqlite:///{tmp_path}")
    assert isinstance(error, ConfigError)
    assert f"{tmp_path} is a directory" in str(error)


@pytest.mark.parametrize("text", ["no database\n", "no database\n" * 500])
def test_a_file_that_is_no_database_is_reported_and_left_unchanged(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    error = opening(f"sqlite:///{path}")
    assert isinstance(error, StoreError)
    assert f"{path} is not a SQLite database" in str(error)
    assert path.read_text() == text


def test_a_path_below_a_file_is_reported(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "Not a directory" in str(opening(f"sqlite:///{tmp_path}/file/jobs.db"))


def test_a_file_name_that_is_too_long_is_reported(tmp_path):
    assert "File name too long" in str(opening(f"sqlite:///{tmp_path}/{'x' * 300}.db"))


def test_a_missing_database_is_reported(postgres_url):
    error = opening(postgres_url.replace("/holdfast_", "/nope_").replace("user=", f"password={SECRET}&user="))
    assert isinstance(error, StoreUnavailable)
    assert 'rejected the connection: database "nope_' in str(error)
    assert "does not exist; check the URL's database" in str(error)


def test_an_unknown_user_is_reported(postgres_url):
    error = opening(postgres_url.replace("user=postgres", f"password={SECRET}&user=stranger"))
    assert 'role "stranger" does not exist; check the URL' in str(error)


def test_a_closed_port_is_reported():
    error = opening(f"postgresql://u:{SECRET}@127.0.0.1:1/db")
    assert isinstance(error, StoreUnavailable)
    assert "cannot connect to postgresql://u@127.0.0.1:1/db" in str(error)
    assert "Connection refused; is the server running?" in str(error)


def test_a_missing_socket_is_reported(tmp_path):
    assert "No such file or directory; is the server running?" in str(opening(f"postgresql:///db?host={tmp_path}"))


@pytest.mark.parametrize(
    "schema", ["", 'a"b', "a'b", "a;b", "a b", "1a", "ä", "a.b", "x" * 51, "x" * 10_240, "a\0", None, 5], ids=repr
)
def test_a_schema_name_that_isnt_a_plain_word_is_refused_briefly(schema):
    with pytest.raises(ConfigError, match="letters, digits and underscores") as caught:
        open_database("postgresql://u@h/db", schema)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("schema", ["select", "Holdfast", "_x", "x" * 50])
def test_a_schema_name_that_is_a_plain_word_works_whatever_it_means_in_sql(postgres_url, schema):
    store = Store(open_database(postgres_url, schema))
    assert store.lanes.ids([("q", "t")])["q", "t"] == 1
    store.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:hunter2@h:1/db", "postgresql://u@h:1/db"),
        ("postgresql://u@h/db?sslmode=require", "postgresql://u@h/db?sslmode=require"),
        ("postgresql://h/db?user=u&password=hunter2", "postgresql://h/db?user=u"),
        ("postgresql://h/db?PASSWORD=hunter2&user=u", "postgresql://h/db?user=u"),
        ("postgresql:///db?host=/tmp&sslpassword=hunter2&port=1", "postgresql:///db?host=/tmp&port=1"),
        ("postgresql://u:hunter2@a:1,b:2/db", "postgresql://u@a:1,b:2/db"),
        ("postgresql://u:a?b#hunter2@h/db", "postgresql://u@h/db"),
    ],
)
def test_a_url_is_shown_without_its_password(url, expected):
    assert redact_password(url) == expected


@pytest.mark.parametrize("url", ["postgresql:/ada:s3cret@host/shop", "postgresql:ada:s3cret@host/shop"])
def test_a_postgresql_url_without_its_slashes_is_refused_without_showing_its_password(url):
    with pytest.raises(ConfigError, match="starts with postgresql://") as caught:
        open_database(url, "holdfast")
    assert "s3cret" not in str(caught.value)


def test_an_escaped_part_that_is_not_utf_8_is_refused():
    with pytest.raises(ConfigError, match="isn't UTF-8"):
        open_database("postgresql://host/%A0", "holdfast")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "psycopg_async", "asyncpg"])
def test_a_url_of_sqlalchemy_works(postgres_url, driver):
    store = Store(open_database(postgres_url.replace("postgresql:", f"postgresql+{driver}:"), "holdfast"))
    assert store.lanes.ids([("q", "t")])["q", "t"] > 0
    assert store.database.display_url.startswith("postgresql:")
    store.close()
