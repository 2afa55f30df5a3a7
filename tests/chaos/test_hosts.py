"""Hosts in network namespaces: packets are dropped on demand, and a run with partitions has a good verdict."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import pytest

from tests.chaos import __main__ as command
from tests.chaos import hosts
from tests.chaos.test_chaos import chaos
from tests.support import network
from tests.support.network import SERVER, HostNetwork
from tests.support.wait_until import wait_until

needs_hosts = pytest.mark.skipif(hosts.unavailable() is not None, reason=str(hosts.unavailable()))
needs_network = pytest.mark.skipif(network.unavailable() is not None, reason=str(network.unavailable()))


class Pair:
    """A socket on the router and one on a host."""

    def __init__(self, net, host):
        with net.inside(0):
            self.server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.server.bind((SERVER, 0))
        with net.inside(host):
            self.client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.client.connect(self.server.getsockname())

    def request(self):
        """Send a packet from the host and return whether it arrived."""
        self.client.send(b"request")
        return _arrives(self.server)

    def reply(self):
        """Send a packet to the host and return whether it arrived."""
        try:
            self.server.sendto(b"reply", self.client.getsockname())
        except OSError:  # the kernel may tell the sender
            return False
        return _arrives(self.client)

    def close(self):
        self.server.close()
        self.client.close()


def _arrives(end):
    """Wait for a packet; a dropped one never arrives, one that is only late makes the test fail, not pass."""
    end.settimeout(0.3)
    try:
        return bool(end.recv(99))
    except TimeoutError:
        return False


@needs_network
def test_packets_of_one_host_are_dropped_in_one_direction_and_flow_again_afterwards():
    with HostNetwork(2) as net:
        cut_off, other = Pair(net, 1), Pair(net, 2)
        address, port = net.address(1), str(cut_off.server.getsockname()[1])
        with net.cut(("from", address)):
            assert not cut_off.request()
            assert other.request()
        with net.cut(("from", address, "ipproto", "udp", "dport", port)):
            assert not cut_off.request()
        with net.cut(("to", address)):
            assert not cut_off.reply()
            wait_until(cut_off.request)
        wait_until(cut_off.reply)
        cut_off.close()
        other.close()


@needs_network
def test_this_process_keeps_its_own_network():
    with HostNetwork(1) as net:
        own = sorted(name for _, name in socket.if_nameindex())
        with net.inside(1):
            assert sorted(name for _, name in socket.if_nameindex()) == ["eth0", "lo"]
        assert sorted(name for _, name in socket.if_nameindex()) == own


def test_a_machine_that_cannot_run_hosts_is_told_why(monkeypatch, capsys):
    monkeypatch.setattr(command, "hosts_unavailable", lambda: "network namespaces need root")
    with pytest.raises(SystemExit):
        command.parse(["--hosts", "8"])
    assert "--hosts: network namespaces need root" in capsys.readouterr().err


@needs_hosts
@pytest.mark.slow
def test_nothing_is_lost_or_doubled_on_hosts_with_partitions_and_wrong_clocks(tmp_path):
    ended = chaos(
        "--hosts", 8, "--workers", 16, "--minutes", 3, "--lease", 5, "--json", tmp_path / "result", timeout=900
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "result").read_text())
    assert set(result["verdict"].values()) == {0}
    names = [kind.name for kind in (hosts.HostIsolated, hosts.RequestsDropped, hosts.RepliesDropped)]
    names += [hosts.PrimaryUnreachable.name, hosts.AllHostsIsolated.name, hosts.HostKilled.name]
    names += ["primary killed (SIGKILL), standby promoted", "worker killed (SIGKILL)"]
    assert all(result["faults"][name] > 0 for name in names), result["faults"]


@needs_hosts
def test_a_host_has_a_clock_of_its_own_and_the_true_monotonic_clock():

    class Here:
        def address(self, number):
            return ""

    code = "import time; print(time.time(), time.monotonic())"
    host = hosts.Host(Here(), 2)
    since, before = time.time(), time.monotonic()
    ended = subprocess.run([sys.executable, "-S", "-c", code], env=host.environment(), capture_output=True, check=True)
    wall, steady = map(float, ended.stdout.split())
    assert host.clock == "+10m"
    assert since + 600 <= wall <= time.time() + 600
    assert before <= steady <= time.monotonic()
