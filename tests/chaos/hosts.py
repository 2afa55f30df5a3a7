"""Workers on several hosts with clocks of their own, a pair of database servers, and a network that drops packets.

The hosts are network namespaces; their clocks are libfaketime's. The monotonic clock, which every host has for itself
in reality too, is the true one: it may not jump on any system.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.chaos.cluster import Cluster, FailoverDatabase
from tests.chaos.faults import Fault
from tests.chaos.worker_pool import Attack, Machine, WorkerPool
from tests.support import network
from tests.support.network import HostNetwork

CLOCKS = ("", "+10m", "-10m", "+3s", "-3s", "+0 x1.05", "+0 x0.95", "+400d")
"""How the hosts' clocks are off: by a time, or fast and slow by five percent."""
LIBRARIES = [Path("/usr/lib", arch, "faketime/libfaketime.so.1") for arch in (f"{os.uname().machine}-linux-gnu", "")]


def unavailable() -> str | None:
    """Return why this machine can't run hosts, or None."""
    if _faketime() is None:
        return "libfaketime isn't installed"
    return network.unavailable()


def _faketime() -> Path | None:
    return next((path for path in LIBRARIES if path.exists()), None)


class Host(Machine):
    """A host of the network."""

    def __init__(self, net: HostNetwork, number: int) -> None:
        self._net = net
        self.number = number
        self.address = net.address(number)
        self.clock = CLOCKS[(number - 1) % len(CLOCKS)]

    def inside(self) -> contextlib.AbstractContextManager[None]:
        return self._net.inside(self.number)

    def environment(self) -> Mapping[str, str]:
        if not self.clock:
            return os.environ
        settings = {"LD_PRELOAD": str(_faketime()), "FAKETIME": self.clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        return {**os.environ, **settings}


class HostsDatabase(FailoverDatabase):
    """A primary and a synchronous standby, which hosts reach through a network."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self._net = HostNetwork(hosts)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._net)
            cluster = Cluster(folder, network.SERVER, network.NETWORK, lambda: self._net.inside(0))
            stack.callback(cluster.close)
            super().__init__(cluster, failovers=1000)
            self._opened = stack.pop_all()
        self.client_url = self.direct_url
        self.machines = [Host(self._net, number) for number in self._net.hosts]

    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]:
        (failover,) = super().faults(source, lease)
        failover.mean_interval_s = 25.0
        return [failover]

    def machine_faults(self, source: random.Random, pool: WorkerPool) -> Sequence[Fault]:
        kinds = (HostIsolated, RequestsDropped, RepliesDropped, PrimaryUnreachable)
        partitions = [kind(random.Random(source.random()), pool, self._net, self._cluster) for kind in kinds]
        return [*partitions, AllHostsIsolated(source, pool, self._net, self._cluster), HostKilled(source, pool)]

    def describe(self) -> str:
        return f"{super().describe()}, workers on {len(self.machines)} hosts"

    def close(self) -> None:
        self._opened.close()


class Partition(Fault):
    """Drops packets of a host, for less or more than the lease."""

    mean_interval_s = 8.0
    leases = (0.3, 2.0)

    def __init__(self, source: random.Random, pool: WorkerPool, net: HostNetwork, cluster: Cluster) -> None:
        super().__init__(source)
        self.net = net
        self._pool = pool
        self._cluster = cluster

    def packets(self, address: str) -> Sequence[Sequence[str]]:
        """Return the packets to drop."""
        return [("from", address), ("to", address)]

    def inject(self) -> bool:
        self.isolate([self.random.choice(self._pool.machines)])
        return True

    def isolate(self, hosts: Sequence[Machine]) -> None:
        packets = [each for host in hosts if isinstance(host, Host) for each in self.packets(host.address)]
        with _attacked(self._pool, hosts), self.net.cut(*packets):
            time.sleep(self._pool.lease * self.random.uniform(*self.leases))

    def primary_port(self) -> str:
        return str(self._cluster.primary.port)


class HostIsolated(Partition):
    name = "host partitioned from the database"


class RequestsDropped(Partition):
    """The host's packets are lost; those of the database arrive."""

    name = "host partitioned, packets from it dropped"

    def packets(self, address: str) -> Sequence[Sequence[str]]:
        return [("from", address)]


class RepliesDropped(Partition):
    """What the host sends arrives and is executed, but it gets no answer."""

    name = "host partitioned, packets to it dropped"

    def packets(self, address: str) -> Sequence[Sequence[str]]:
        return [("to", address)]


class PrimaryUnreachable(Partition):
    """The host reaches the standby only."""

    name = "host partitioned from the primary only"

    def packets(self, address: str) -> Sequence[Sequence[str]]:
        return [("from", address, "ipproto", "tcp", "dport", self.primary_port())]


class AllHostsIsolated(Partition):
    name = "all hosts partitioned from the database"
    mean_interval_s = 30.0
    is_outage = True

    def inject(self) -> bool:
        self.isolate(self._pool.machines)
        return True


class HostKilled(Fault):
    """Kills all workers of a host at once, as a power cut would."""

    name = "all workers of a host killed (SIGKILL)"
    mean_interval_s = 15.0

    def __init__(self, source: random.Random, pool: WorkerPool) -> None:
        super().__init__(source)
        self._pool = pool

    def inject(self) -> bool:
        with self._pool.borrow_machine(self.random.choice(self._pool.machines)) as workers:
            for worker in workers:
                self._pool.kill(worker)
        return bool(workers)


@contextlib.contextmanager
def _attacked(pool: WorkerPool, machines: Sequence[Machine]) -> Iterator[None]:
    """Record that the workers of these machines are under attack, with those that are started meanwhile."""
    since = time.monotonic()
    yield
    until = time.monotonic()
    pids = {worker.process.pid for machine in machines for worker in pool.of_machine(machine)}
    pool.attacks.extend(Attack(pid, since, until) for pid in pids)
