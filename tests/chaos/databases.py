"""The databases of chaos runs and their faults: a SQLite file, or a PostgreSQL server behind a proxy.

Each is on a small file system of its own if root can mount one.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import apsw
import psycopg

from holdfast import Holdfast
from holdfast.testing.server import PostgresServer
from tests.chaos.effects import TABLE
from tests.chaos.faults import Fault
from tests.chaos.worker_pool import Machine, WorkerPool
from tests.support.busy_writer import BusyWriter
from tests.support.charges import record_charges
from tests.support.disk import Disk
from tests.support.proxy import COMMIT, Proxy

DISK_SIZE_MB = 1024


class ChaosDatabase(ABC):
    """A database and the faults that can be injected into it."""

    name: str
    url: str
    """The URL for workers and clients."""
    direct_url: str
    """The URL for the verdict, without the proxy."""
    client_url: str | None = None
    """The URL for the client that starts runs, if it isn't that of the workers."""
    machines: Sequence[Machine] = (Machine(),)
    """Where workers run."""

    @abstractmethod
    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]: ...

    def machine_faults(self, source: random.Random, pool: WorkerPool) -> Sequence[Fault]:
        """Return the faults of machines with workers."""
        return []

    @abstractmethod
    def describe(self) -> str: ...

    def is_exhausted(self) -> bool:
        """Tell whether all planned faults have been injected."""
        return False

    def outages(self) -> Sequence[tuple[float, float]]:
        """Return the periods without writes that no injected outage explains."""
        return []

    def check_integrity(self) -> list[str]:
        """Return the problems that the database reports about its files."""
        return []

    @abstractmethod
    def close(self) -> None: ...


class DiskFull(Fault):
    """Fills the disk, sometimes for longer than a lease."""

    name = "disk full"
    mean_interval_s = 25.0
    is_outage = True

    def __init__(self, source: random.Random, disk: Disk, lock: threading.Lock, server: PostgresServer | None) -> None:
        super().__init__(source)
        self.unavailable = disk.missing
        self._disk = disk
        self._lock = lock
        self._server = server

    def inject(self) -> bool:
        with self._lock:
            filled = self._disk.fill()
            try:
                time.sleep(self.random.uniform(0.5, 4))
            finally:
                self._disk.clear()
            if self._server is not None and not self._server.running:
                self._server.start()  # PostgreSQL exits if there is no room for WAL.
        return filled


class SqliteDatabase(ChaosDatabase):
    """A SQLite file."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._disk = Disk(folder / "disk", DISK_SIZE_MB)
        self._file = self._disk.folder / "chaos.db"
        self.url = self.direct_url = f"sqlite:///{self._file}"
        with Holdfast(self.url) as app, app.transaction() as connection:
            connection.execute(TABLE)
            app.store.prepare()
        record_charges(self.url)
        self._monitor = WriteMonitor(self._file)
        self._writes: LongWrites | None = None

    def outages(self) -> Sequence[tuple[float, float]]:
        """While another program writes all the time, count its own gaps: the monitor doesn't queue for a turn."""
        if self._writes is None:
            return self._monitor.gaps
        busy = self._writes.times
        unexplained = [
            gap for gap in self._monitor.gaps if not any(gap[0] < until and since < gap[1] for since, until in busy)
        ]
        return [*unexplained, *self._writes.gaps]

    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]:
        lock = threading.Lock()
        self._writes = LongWrites(random.Random(source.random()), self.url)
        return [FileLocked(source, self._file, lease), DiskFull(source, self._disk, lock, None), self._writes]

    def describe(self) -> str:
        return f"SQLite {apsw.sqlitelibversion()}"

    def check_integrity(self) -> list[str]:
        with Holdfast(self.direct_url) as app, app.transaction() as connection:
            return [str(said) for (said,) in connection.execute("pragma integrity_check") if said != "ok"]

    def close(self) -> None:
        self._monitor.close()
        self._disk.close()


class WriteMonitor:
    """Checks whether the file can be written.

    A worker that is frozen in the middle of a write blocks all other writers until it continues.
    """

    def __init__(self, file: Path) -> None:
        self.gaps: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._monitor_writes, args=(file,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _monitor_writes(self, file: Path) -> None:
        connection = apsw.Connection(str(file))
        connection.set_busy_timeout(100)
        last = time.monotonic()
        while not self._stopped.wait(0.1):
            try:
                connection.execute("begin immediate")
                connection.execute("rollback")
            except apsw.Error:
                continue
            if time.monotonic() - last > 1:
                self.gaps.append((last, time.monotonic()))
            last = time.monotonic()
        connection.close()


class FileLocked(Fault):
    """Another process holds the write lock, for less or more than the lease."""

    name = "write lock held by another process"
    mean_interval_s = 15.0
    is_outage = True

    def __init__(self, source: random.Random, file: Path, lease: float) -> None:
        super().__init__(source)
        self._file = file
        self._lease = lease

    def inject(self) -> bool:
        code = (
            "import apsw, sys, time; c = apsw.Connection(sys.argv[1]); c.set_busy_timeout(10000);"
            "c.execute('begin immediate'); time.sleep(float(sys.argv[2]))"
        )
        seconds = self._lease * self.random.uniform(0.3, 1.5)
        return _python(code, str(self._file), str(seconds)) == 0


class LongWrites(Fault):
    """Another program writes all the time, 100 ms per transaction. No worker may lose its lease because of it."""

    name = "another program in transactions of 100 ms"
    mean_interval_s = 12.0

    def __init__(self, source: random.Random, url: str) -> None:
        super().__init__(source)
        self.gaps: list[tuple[float, float]] = []
        """The periods in which the program itself waited for more than a second."""
        self._url = url

    def inject(self) -> bool:
        with BusyWriter(self._url) as writer:
            time.sleep(self.random.uniform(2, 6))
        times = writer.commits()
        self.gaps += [(before, after) for before, after in pairwise(times) if after - before > 1]
        return len(times) > 1


def _python(code: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False).returncode


class PostgresDatabase(ChaosDatabase):
    """A PostgreSQL server with durable commits, behind a proxy."""

    name = "PostgreSQL"

    def __init__(self, folder: Path, version: int | None = None) -> None:
        self._disk = Disk(folder / "disk", DISK_SIZE_MB)
        data = self._disk.folder / "data"
        settings = {"max_wal_size": "128MB", "wal_keep_size": 0, "max_connections": 200}
        self.server = PostgresServer(data, fsync=True, version=version, settings=settings).start()
        self.direct_url = self.server.create_database("chaos")
        with psycopg.connect(self.direct_url) as own:
            own.execute(TABLE)
            self._version = str(own.info.parameter_status("server_version"))
        with Holdfast(self.direct_url) as app:
            app.store.prepare()
        record_charges(self.direct_url)
        self.proxy = Proxy(self.direct_url)
        self.url = self.proxy.url

    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]:
        lock, commits = threading.Lock(), threading.Lock()
        return [
            ServerKilled(source, self.server, lock),
            ConnectionsCut(source, self.proxy),
            AnswerLost(source, self.proxy, commits),
            RequestLost(source, self.proxy, commits),
            NetworkSlow(source, self.proxy),
            NetworkSilent(source, self.proxy, lease),
            DiskFull(source, self._disk, lock, self.server),
        ]

    def describe(self) -> str:
        return f"PostgreSQL {self._version}"

    def close(self) -> None:
        self.proxy.close()
        self.server.close()
        self._disk.close()


class ServerKilled(Fault):
    name = "server killed (SIGKILL)"
    mean_interval_s = 14.0
    is_outage = True

    def __init__(self, source: random.Random, server: PostgresServer, lock: threading.Lock) -> None:
        super().__init__(source)
        self._server = server
        self._lock = lock

    def inject(self) -> bool:
        with self._lock:
            self._server.kill()
            time.sleep(self.random.choice([0, 0, 0.5, 2]))
            self._server.start()
        return True


class NetworkFault(Fault):
    """A fault of the network, injected by the proxy."""

    def __init__(self, source: random.Random, proxy: Proxy) -> None:
        super().__init__(source)
        self.proxy = proxy


class ConnectionsCut(NetworkFault):
    name = "all connections cut"
    mean_interval_s = 12.0

    def inject(self) -> bool:
        self.proxy.cut()
        return True


class CommitFault(NetworkFault):
    """Disturbs the next COMMIT of any client; one such fault at a time."""

    def __init__(self, source: random.Random, proxy: Proxy, lock: threading.Lock) -> None:
        super().__init__(source, proxy)
        self._lock = lock

    def inject(self) -> bool:
        with self._lock:
            self.arm()
            return self.proxy.fired.wait(5)

    @abstractmethod
    def arm(self) -> None: ...


class AnswerLost(CommitFault):
    """The server commits, but the answer is lost."""

    name = "answer to a COMMIT lost"
    mean_interval_s = 4.0

    def arm(self) -> None:
        self.proxy.lose_answer(COMMIT)


class RequestLost(CommitFault):
    name = "COMMIT request lost"
    mean_interval_s = 7.0

    def arm(self) -> None:
        self.proxy.lose_request(COMMIT)


class NetworkSlow(NetworkFault):
    name = "network slow"
    mean_interval_s = 15.0
    is_outage = True

    def inject(self) -> bool:
        self.proxy.delay = self.random.uniform(0.02, 0.2)
        try:
            time.sleep(self.random.uniform(1, 3))
        finally:
            self.proxy.delay = 0.0
        return True


class NetworkSilent(NetworkFault):
    """Drops all packets, for less or more than the lease."""

    name = "network silent (packets dropped)"
    mean_interval_s = 25.0
    is_outage = True

    def __init__(self, source: random.Random, proxy: Proxy, lease: float) -> None:
        super().__init__(source, proxy)
        self._lease = lease

    def inject(self) -> bool:
        self.proxy.pause()
        try:
            time.sleep(self._lease * self.random.uniform(0.3, 1.6))
        finally:
            self.proxy.resume()
        return True
