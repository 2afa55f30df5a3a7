"""A PostgreSQL server with a synchronous standby, which takes over again and again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Holdfast
from holdfast.testing.server import PostgresServer
from tests.chaos.effects import TABLE
from tests.chaos.faults import Fault
from tests.chaos.houses import House
from tests.support.charges import record_charges
from tests.support.waiting import wait_until

SETTINGS = {"wal_keep_size": "128MB", "wal_retrieve_retry_interval": "200ms", "max_connections": 100}
IN_STEP = "select 1 from pg_stat_replication where sync_state in ('sync', 'quorum') and state = 'streaming'"
DATABASE = "chaos"


class Cluster:
    """Two servers: one that takes writes, and acknowledges them when the other has them too."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o777)  # whoever runs PostgreSQL makes its data there
        self._servers = [PostgresServer(folder / name, port=0, settings=SETTINGS) for name in ("a", "b")]
        self.primary, self.standby = self._servers
        self.primary.start()
        self.primary.create_database(DATABASE)
        self.add_standby()

    @property
    def url(self) -> str:
        """For clients, who find the one that takes writes."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self._servers)
        return f"postgresql://postgres@{hosts}/{DATABASE}?target_session_attrs=read-write"

    def add_standby(self) -> None:
        """Copy the primary to the other's place, let that follow, and acknowledge nothing that it doesn't have."""
        if self.standby.running:
            self.standby.stop()
        shutil.rmtree(self.standby.data, ignore_errors=True)
        self.primary.copy_to(self.standby.data)
        self.standby.start()
        _order(self.standby, "alter system set synchronous_standby_names = ''")  # for when it takes over, alone
        _order(self.primary, "alter system set synchronous_standby_names = '*'")
        wait_until(lambda: _order(self.primary, IN_STEP), what="a standby in step")

    def fail_over(self) -> None:
        """The primary dies as by a power cut, and the standby takes over."""
        self.primary.kill()
        _order(self.standby, "select pg_promote(true, 60)")
        self.primary, self.standby = self.standby, self.primary

    def close(self) -> None:
        for server in self._servers:
            server.close()


def _order(server: PostgresServer, statement: str) -> list[Any]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        rows = connection.execute(statement.encode())
        found = rows.fetchall() if rows.description else []
        connection.execute("select pg_reload_conf()")
        return found


class ClusterHouse(House):
    """Fails over so many times, each time with a standby in step."""

    name = "PostgreSQL with a standby"

    def __init__(self, folder: Path, failovers: int) -> None:
        self._cluster = Cluster(folder)
        self._failovers = failovers
        self._fault: PrimaryKilled | None = None
        self.url = self.direct = self._cluster.url
        with psycopg.connect(self.direct) as own:
            own.execute(TABLE)
            self._version = str(own.info.parameter_status("server_version"))
        with Holdfast(self.direct) as app:
            app.store.prepare()
        record_charges(self.direct)

    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]:
        self._fault = PrimaryKilled(source, self._cluster, self._failovers)
        return [self._fault]

    def enough(self) -> bool:
        return self._fault is not None and self._fault.fired >= self._failovers

    def about(self) -> str:
        return f"PostgreSQL {self._version} with a synchronous standby"

    def close(self) -> None:
        self._cluster.close()


class PrimaryKilled(Fault):
    """The primary killed, the standby promoted; then there is a new standby."""

    name = "primary killed (SIGKILL), standby promoted"
    every = 6.0
    outage = True
    taken_over = True

    def __init__(self, source: random.Random, cluster: Cluster, most: int) -> None:
        super().__init__(source)
        self._cluster = cluster
        self._most = most

    def once(self) -> bool:
        if self.fired >= self._most:
            return False
        self._cluster.fail_over()
        return True

    def fire(self) -> None:
        super().fire()
        self._cluster.add_standby()
