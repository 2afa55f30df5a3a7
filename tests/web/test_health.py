"""The probes of the dashboard's process."""

from __future__ import annotations

import threading

import pytest

from holdfast.control.maintenance import Maintenance, SchemaStatus
from holdfast.errors import StoreUnavailable
from holdfast.web import health
from tests.support.web import Visitor


@pytest.fixture
def stranger(shop):
    shop.control.tokens.create("read")
    return Visitor(shop.site())


def test_probes_need_no_token(stranger):
    assert (stranger.get("/livez").status, stranger.get("/livez").text) == (200, "event_loop ok\n")
    assert (stranger.get("/readyz").status, stranger.get("/readyz").text) == (200, "database ok\nschema ok\n")


def test_a_lost_database_and_old_tables_fail_the_readiness_probe_without_details(stranger, monkeypatch):
    def lost(_self):
        raise StoreUnavailable("host 10.0.0.7 refused the password of ada")

    with monkeypatch.context() as patch:
        patch.setattr(Maintenance, "tables", lost)
        answer = stranger.get("/readyz")
        assert (answer.status, answer.text) == (503, "database failed: not available\n")
        assert stranger.get("/livez").status == 200
        patch.setattr(Maintenance, "tables", lambda _self: SchemaStatus(3, 4, ["four"]))
        assert (stranger.get("/readyz").status, stranger.get("/readyz").text.splitlines()[1]) == (
            503,
            "schema failed: older than the code",
        )
    assert stranger.get("/readyz").status == 200


def test_a_database_that_does_not_answer_fails_the_readiness_probe(stranger, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(health, "DATABASE_TIMEOUT_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(Maintenance, "tables", lambda _self: release.wait(30))
        assert stranger.get("/readyz").status == 503
        release.set()
