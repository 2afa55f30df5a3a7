"""Switchovers and failovers of Patroni, through the command line."""

from __future__ import annotations

import json

import pytest

from tests.chaos import __main__ as command
from tests.chaos import patroni
from tests.chaos.patroni import Node, PatroniCluster, PrimarySwitched
from tests.chaos.test_chaos import chaos

FAILOVERS = 6


def test_missing_programs_are_named(monkeypatch, capsys):
    monkeypatch.delenv("PATRONI", raising=False)
    monkeypatch.setattr(patroni.shutil, "which", lambda *_args, **_more: None)
    with pytest.raises(SystemExit):
        command.parse(["--patroni", "2"])
    assert "--patroni: not installed: etcd, haproxy, patroni" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("roles", "ready"),
    [(["leader", "sync_standby"], True), (["leader", "replica"], False), (["leader"], False), (["replica"] * 2, False)],
)
def test_a_failover_waits_for_a_synchronous_standby(monkeypatch, roles, ready):
    """Otherwise it could lose acknowledged data, for which Holdfast isn't to blame."""
    members = json.dumps({"members": [{"role": role} for role in roles]})
    monkeypatch.setattr(Node, "ask", lambda *_args: (200, members))
    cluster = PatroniCluster.__new__(PatroniCluster)
    cluster.nodes = [Node("a", (1, 2))]
    assert cluster.has_sync_standby() == ready


def test_workers_are_back_counted_from_the_promotion():
    fault = PrimarySwitched.__new__(PrimarySwitched)
    fault.times = [(10.0, 31.0)]
    assert fault.failovers == [(31.0, 31.0)]


@pytest.mark.slow
@pytest.mark.skipif(patroni.unavailable() is not None, reason=str(patroni.unavailable()))
def test_nothing_is_lost_when_patroni_changes_the_primary(tmp_path):
    options = ["--patroni", FAILOVERS, "--workers", 3, "--lease", 5, "--json", tmp_path / "result"]
    ended = chaos(*options, timeout=1500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "result").read_text())
    assert set(result["verdict"].values()) == {0}
    assert sum(result["faults"][kind.name] for kind in (PrimarySwitched, patroni.PrimaryHostLost)) == FAILOVERS
    assert result["workers back after a failover"]["count"] >= FAILOVERS
