"""Convert an entry of `DATABASES` to a URL."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.database.url import check_postgres_url, redact_password
from holdfast.integrations.django.connections import url_of

PLAIN = {"dbname": "shop", "user": "ada", "password": "p@ss/w:rd%", "host": "db.example.org", "port": "5433"}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"NAME": "shop"}, {"dbname": "shop"}),
        (
            {"NAME": "shop", "USER": "ada", "PASSWORD": "p@ss/w:rd%", "HOST": "db.example.org", "PORT": 5433},
            PLAIN,
        ),
        ({"NAME": "a b", "PASSWORD": "x y"}, {"dbname": "a b", "password": "x y"}),
        ({"NAME": "shop", "HOST": "/run/pg", "PORT": "1"}, {"dbname": "shop", "host": "/run/pg", "port": "1"}),
        ({"NAME": "shop", "USER": "u", "HOST": "::1"}, {"dbname": "shop", "user": "u", "host": "::1"}),
        ({"NAME": "shop", "HOST": "a,b", "PORT": "1,2"}, {"dbname": "shop", "host": "a,b", "port": "1,2"}),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, {"service": "shop"}),
        (
            {"NAME": "s", "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 3, "connect_timeout": 9}},
            {"dbname": "s", "sslmode": "require", "connect_timeout": "9"},
        ),
        (
            {"NAME": "s", "OPTIONS": {"options": "-c jit=on", "assume_role": "app owner"}},
            {"dbname": "s", "options": "-c jit=on -c role=app\\ owner"},
        ),
    ],
)
def test_a_django_database_is_converted_to_a_url(given, read):
    url = url_of(given)
    check_postgres_url(url)
    assert conninfo_to_dict(url) == read
    assert str(given.get("PASSWORD") or "no password") not in redact_password(url)
