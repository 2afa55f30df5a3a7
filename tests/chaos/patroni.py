"""PostgreSQL under Patroni, with etcd and HAProxy: switchovers, and failovers after the host of the primary has died.

Patroni is a program of its own, with its own dependencies: `$PATRONI` names its executable if it isn't on the path.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import psycopg

from holdfast import Holdfast
from holdfast.testing import postgres_binaries
from holdfast.testing.postgres_binaries import ServerUser
from tests.chaos.databases import ChaosDatabase
from tests.chaos.effects import TABLE
from tests.chaos.faults import Fault
from tests.support.charges import record_charges
from tests.support.wait_until import wait_until

START_TIMEOUT_S = 120.0
FAILOVER_TIMEOUT_S = 90.0
HAPROXY = """\
global
    maxconn 500
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    timeout check 1s
listen primary
    bind 127.0.0.1:{port}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
{servers}
"""


def _patroni() -> str | None:
    return os.environ.get("PATRONI") or shutil.which("patroni")


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def unavailable() -> str | None:
    """Return which program is missing, or None."""
    missing = [name for name in ("etcd", "haproxy") if _program(name) is None]
    missing += ["patroni"] if _patroni() is None else []
    return f"not installed: {', '.join(missing)}" if missing else None


class Node:
    """A server of PostgreSQL with its Patroni."""

    def __init__(self, name: str, ports: Sequence[int]) -> None:
        self.name = name
        self.postgres_port, self.rest_port = ports
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, path: str, method: str = "GET", body: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Call Patroni's REST API; return status 0 if it doesn't answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.rest_port, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def is_primary(self) -> bool:
        return self.ask("/primary")[0] == 200

    def kill(self) -> None:
        """Kill Patroni and its server, as a power cut would."""
        assert self.process is not None
        victims = [psutil.Process(self.process.pid), *self._server()]
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        psutil.wait_procs(victims, timeout=30)

    def _server(self) -> list[psutil.Process]:
        """Return the processes of the server, which Patroni detaches from itself."""
        marks = {f"--port={self.postgres_port}"}
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if marks & set(process.info["cmdline"] or ()):
                found += [process, *process.children(recursive=True)]
        return found


class PatroniCluster:
    """Two nodes with a synchronous standby, a single etcd, and HAProxy in front."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o777)
        self._folder = folder
        self._owner = ServerUser.default()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._install = postgres_binaries.usable(postgres_binaries.find(None), self._owner, folder)
        self._password = secrets.token_hex(16)
        ports = _free_ports(7)
        self._etcd_port, self.port = ports[0], ports[6]
        self.nodes = [Node("a", ports[2:4]), Node("b", ports[4:6])]
        try:
            self._start(ports[1])
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"

    def primary(self) -> Node | None:
        return next((node for node in self.nodes if node.is_primary()), None)

    def has_sync_standby(self) -> bool:
        """Return whether there are a primary and a synchronous standby, to which a failover is possible."""
        status, text = self.nodes[0].ask("/cluster")
        roles = [member["role"] for member in json.loads(text)["members"]] if status == 200 else []
        return sorted(roles) == ["leader", "sync_standby"]

    def wait_for_standby(self) -> None:
        wait_until(self.has_sync_standby, START_TIMEOUT_S, lambda: f"a synchronous standby: see {self._folder}")

    def start_node(self, node: Node) -> None:
        command = [str(_patroni()), str(self._folder / f"{node.name}.yml")]
        node.process = self._popen(node.name, command)

    def close(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                node.kill()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()

    def _start(self, peer_port: int) -> None:
        client = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{peer_port}"
        etcd = [str(_program("etcd")), "--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync"]
        etcd += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        self._popen("etcd", [*etcd, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"])
        servers = [
            f"    server {node.name} 127.0.0.1:{node.postgres_port} check port {node.rest_port}" for node in self.nodes
        ]
        (self._folder / "haproxy.cfg").write_text(HAPROXY.format(port=self.port, servers="\n".join(servers)))
        self._popen("haproxy", [str(_program("haproxy")), "-f", str(self._folder / "haproxy.cfg")])
        for node in self.nodes:
            (self._folder / f"{node.name}.yml").write_text(json.dumps(self._settings(node)))
            self.start_node(node)
        self.wait_for_standby()
        wait_until(self._answers, START_TIMEOUT_S, "HAProxy")

    def _settings(self, node: Node) -> dict[str, Any]:
        """Return the configuration of a node. JSON is YAML, too."""
        account = {"username": "postgres", "password": self._password}
        replication = {"username": "replicator", "password": self._password}
        timing = {"ttl": 20, "loop_wait": 2, "retry_timeout": 5, "maximum_lag_on_failover": 1048576}
        parameters = {"max_connections": 200, "wal_keep_size": "128MB", "wal_log_hints": "on"}
        server = {
            "listen": f"127.0.0.1:{node.postgres_port}",
            "connect_address": f"127.0.0.1:{node.postgres_port}",
            "data_dir": str(self._folder / f"data-{node.name}"),
            "bin_dir": str(self._install / "bin"),
            "pgpass": str(self._folder / f"pgpass-{node.name}"),
            "authentication": {"superuser": account, "replication": replication, "rewind": account},
            "parameters": {"unix_socket_directories": ""},
            "pg_hba": [f"host {what} all 127.0.0.1/32 scram-sha-256" for what in ("replication", "all")],
        }
        return {
            "scope": "holdfast",
            "name": node.name,
            "restapi": {
                "listen": f"127.0.0.1:{node.rest_port}", "connect_address": f"127.0.0.1:{node.rest_port}",
            },
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": timing | {
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": parameters},
                },
                "initdb": ["data-checksums", {"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": server,
        }  # fmt: skip

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url) as connection:
            return connection.execute("select 1").fetchone() == (1,)
        return False

    def _popen(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        self._owner.take(self._folder) if not self._processes else None
        with (self._folder / f"{name}.log").open("ab") as log:
            process = self._owner.popen(command, self._folder, stdout=log.fileno())
        self._processes.append(process)
        return process


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class PatroniDatabase(ChaosDatabase):
    """A primary with a synchronous standby under Patroni, which switches over or fails over."""

    name = "PostgreSQL under Patroni"

    def __init__(self, folder: Path, failovers: int) -> None:
        self._cluster = PatroniCluster(folder)
        self._failovers = failovers
        self._faults: list[PrimaryChanged] = []
        self.url = self.direct_url = self._cluster.url
        with psycopg.connect(self.url) as own:
            own.execute(TABLE)
            self._version = str(own.info.parameter_status("server_version"))
        with Holdfast(self.url) as app:
            app.store.prepare()
        record_charges(self.url)

    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]:
        lock = threading.Lock()
        half = self._failovers // 2
        self._faults = [
            PrimarySwitched(random.Random(source.random()), self._cluster, self._failovers - half, lock),
            PrimaryHostLost(random.Random(source.random()), self._cluster, half, lock),
        ]
        return self._faults

    def is_exhausted(self) -> bool:
        return bool(self._faults) and sum(fault.fired for fault in self._faults) >= self._failovers

    def describe(self) -> str:
        return f"PostgreSQL {self._version} under Patroni, behind HAProxy"

    def close(self) -> None:
        self._cluster.close()


class PrimaryChanged(Fault):
    """Makes the standby the primary. Workers are back, counted from its promotion."""

    mean_interval_s = 6.0
    is_outage = True
    is_failover = True

    def __init__(self, source: random.Random, cluster: PatroniCluster, most: int, lock: threading.Lock) -> None:
        super().__init__(source)
        self.cluster = cluster
        self._most = most
        self._lock = lock

    @property
    def failovers(self) -> Sequence[tuple[float, float]]:
        return [(until, until) for _, until in self.times]

    def fire(self) -> None:
        if self.fired >= self._most:
            return
        with self._lock:
            self.cluster.wait_for_standby()
            super().fire()
            self.restore()
            self.cluster.wait_for_standby()

    def inject(self) -> bool:
        old = self.cluster.primary()
        assert old is not None
        (new,) = [node for node in self.cluster.nodes if node is not old]
        self.change(old, new)
        wait_until(new.is_primary, FAILOVER_TIMEOUT_S, "a new primary")
        return True

    def change(self, old: Node, new: Node) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        """Bring the old primary back as a standby."""


class PrimarySwitched(PrimaryChanged):
    name = "switchover by Patroni"

    def change(self, old: Node, new: Node) -> None:
        status, said = old.ask("/switchover", "POST", {"leader": old.name, "candidate": new.name})
        if status != 200:
            raise RuntimeError(f"no switchover: {status} {said}")


class PrimaryHostLost(PrimaryChanged):
    """Kills the primary and its Patroni, whose lock in etcd expires then."""

    name = "primary and its Patroni killed (SIGKILL)"

    def change(self, old: Node, new: Node) -> None:
        self._lost = old
        old.kill()

    def restore(self) -> None:
        time.sleep(self.random.uniform(0, 2))
        self.cluster.start_node(self._lost)
