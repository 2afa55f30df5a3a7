"""A PostgreSQL server with a synchronous standby, and failovers between them."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Holdfast
from holdfast.testing.server import PostgresServer
from tests.chaos.databases import ChaosDatabase
from tests.chaos.effects import TABLE
from tests.chaos.faults import Fault
from tests.support.charges import record_charges
from tests.support.wait_until import wait_until

SETTINGS = {"wal_keep_size": "128MB", "wal_retrieve_retry_interval": "200ms", "max_connections": 100}
HAS_SYNC_STANDBY = "select 1 from pg_stat_replication where sync_state in ('sync', 'quorum') and state = 'streaming'"
DATABASE = "chaos"


class Cluster:
    """A primary and a synchronous standby.

    With an `address`, the servers also listen there, for clients in `network`; `inside` lets a thread use the network
    that has this address.
    """

    def __init__(
        self,
        folder: Path,
        address: str = "127.0.0.1",
        network: str | None = None,
        inside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        folder.chmod(0o777)  # PostgreSQL runs as another user.
        self._address = address
        self._inside = inside
        settings = SETTINGS | {"listen_addresses": ",".join(sorted({"127.0.0.1", address})), "max_connections": 200}
        self._servers = [PostgresServer(folder / name, port=0, settings=settings) for name in ("a", "b")]
        self.primary, self.standby = self._servers
        with inside():
            self.primary.start()
            if network is not None:
                with (self.primary.data / "pg_hba.conf").open("a") as access:
                    access.write(f"host all all {network} scram-sha-256\n")
            self.primary.create_database(DATABASE)
            self.add_standby()

    @property
    def url(self) -> str:
        """The URL for clients; libpq finds the server that accepts writes."""
        hosts = ",".join(f"{self._address}:{server.port}" for server in self._servers)
        return f"postgresql://postgres:{self.primary.password}@{hosts}/{DATABASE}?target_session_attrs=read-write"

    @property
    def socket_url(self) -> str:
        """The same over Unix sockets, which don't depend on the network."""
        folders = ",".join(str(server.socket_folder) for server in self._servers)
        ports = ",".join(str(server.port) for server in self._servers)
        where = f"host={folders}&port={ports}&user=postgres&target_session_attrs=read-write"
        return f"postgresql:///{DATABASE}?{where}"

    def add_standby(self) -> None:
        """Create a new standby from a copy of the primary and make replication synchronous."""
        with self._inside():
            self._add_standby()

    def _add_standby(self) -> None:
        if self.standby.running:
            self.standby.stop()
        shutil.rmtree(self.standby.data, ignore_errors=True)
        self.primary.copy_to(self.standby.data)
        self.standby.start()
        _execute(self.standby, "alter system set synchronous_standby_names = ''")  # for the time after its promotion
        _execute(self.primary, "alter system set synchronous_standby_names = '*'")
        wait_until(lambda: _execute(self.primary, HAS_SYNC_STANDBY), what="a synchronous standby")

    def fail_over(self) -> None:
        """Kill the primary as a power cut would, and promote the standby."""
        self.primary.kill()
        with self._inside():
            _execute(self.standby, "select pg_promote(true, 60)")
        self.primary, self.standby = self.standby, self.primary

    def close(self) -> None:
        for server in self._servers:
            server.close()


def _execute(server: PostgresServer, statement: str) -> list[Any]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        rows = connection.execute(statement.encode())
        found = rows.fetchall() if rows.description else []
        connection.execute("select pg_reload_conf()")
        return found


class FailoverDatabase(ChaosDatabase):
    """A primary with a synchronous standby, which takes over when the primary is killed."""

    name = "PostgreSQL with a standby"

    def __init__(self, cluster: Cluster, failovers: int) -> None:
        self._cluster = cluster
        self._failovers = failovers
        self._fault: PrimaryKilled | None = None
        self.url = cluster.url
        self.direct_url = cluster.socket_url
        with psycopg.connect(self.direct_url) as own:
            own.execute(TABLE)
            self._version = str(own.info.parameter_status("server_version"))
        with Holdfast(self.direct_url) as app:
            app.store.prepare()
        record_charges(self.direct_url)

    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]:
        self._fault = PrimaryKilled(source, self._cluster, self._failovers)
        return [self._fault]

    def is_exhausted(self) -> bool:
        return self._fault is not None and self._fault.fired >= self._failovers

    def describe(self) -> str:
        return f"PostgreSQL {self._version} with a synchronous standby"

    def close(self) -> None:
        self._cluster.close()


class PrimaryKilled(Fault):
    """Kills the primary, promotes the standby and creates a new one."""

    name = "primary killed (SIGKILL), standby promoted"
    mean_interval_s = 6.0
    is_outage = True
    is_failover = True

    def __init__(self, source: random.Random, cluster: Cluster, max_failovers: int) -> None:
        super().__init__(source)
        self._cluster = cluster
        self._max_failovers = max_failovers

    def inject(self) -> bool:
        if self.fired >= self._max_failovers:
            return False
        self._cluster.fail_over()
        return True

    def fire(self) -> None:
        super().fire()
        self._cluster.add_standby()
