"""Where the database of a chaos run lives, and what can be done to it: a SQLite file or a PostgreSQL server of its own,
behind a proxy; on a small file system of its own where root may mount one."""

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
from tests.support.busy_writer import BusyWriter
from tests.support.charges import record_charges
from tests.support.disk import Disk
from tests.support.proxy import COMMIT, Proxy

MEGABYTES = 1024


class House(ABC):
    """One database, and the faults that it can have."""

    name: str
    url: str
    """For workers and clients."""
    direct: str
    """For the verdict."""

    @abstractmethod
    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]: ...

    @abstractmethod
    def about(self) -> str: ...

    def enough(self) -> bool:
        """Whether it has had all the faults that it was made for."""
        return False

    def unwell(self) -> Sequence[tuple[float, float]]:
        """From when to when nobody could write, other than by a fault that was meant to have that effect."""
        return []

    def damage(self) -> list[str]:
        """What the database itself finds wrong with its files, in the end."""
        return []

    @abstractmethod
    def close(self) -> None: ...


class DiskFull(Fault):
    """No room for a while, longer than a lease at times."""

    name = "disk full"
    every = 25.0
    outage = True

    def __init__(self, source: random.Random, disk: Disk, lock: threading.Lock, server: PostgresServer | None) -> None:
        super().__init__(source)
        self.missing = disk.missing
        self._disk = disk
        self._lock = lock
        self._server = server

    def once(self) -> bool:
        with self._lock:
            filled = self._disk.fill()
            try:
                time.sleep(self.random.uniform(0.5, 4))
            finally:
                self._disk.clear()
            if self._server is not None and not self._server.running:
                self._server.start()  # where even its log of writes had no room, it has given up
        return filled


class SqliteHouse(House):
    """A file."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._disk = Disk(folder / "disk", MEGABYTES)
        self._file = self._disk.folder / "chaos.db"
        self.url = self.direct = f"sqlite:///{self._file}"
        with Holdfast(self.url) as app, app.transaction() as connection:
            connection.execute(TABLE)
            app.store.prepare()
        record_charges(self.url)
        self._pulse = Pulse(self._file)
        self._writes: LongWrites | None = None

    def unwell(self) -> Sequence[tuple[float, float]]:
        """While another program writes all the time, what it sees itself counts: the pulse waits without its turn."""
        if self._writes is None:
            return self._pulse.gaps
        busy = self._writes.times
        felt = [gap for gap in self._pulse.gaps if not any(gap[0] < until and since < gap[1] for since, until in busy)]
        return [*felt, *self._writes.gaps]

    def faults(self, source: random.Random, lease: float) -> Sequence[Fault]:
        lock = threading.Lock()
        self._writes = LongWrites(random.Random(source.random()), self.url)
        return [FileLocked(source, self._file, lease), DiskFull(source, self._disk, lock, None), self._writes]

    def about(self) -> str:
        return f"SQLite {apsw.sqlitelibversion()}"

    def damage(self) -> list[str]:
        with Holdfast(self.direct) as app, app.transaction() as connection:
            return [str(said) for (said,) in connection.execute("pragma integrity_check") if said != "ok"]

    def close(self) -> None:
        self._pulse.close()
        self._disk.close()


class Pulse:
    """Sees whether the file can be written. A worker that is frozen in the middle of a write, which no program can
    foresee, keeps everyone else from writing until it goes on."""

    def __init__(self, file: Path) -> None:
        self.gaps: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feel, args=(file,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _feel(self, file: Path) -> None:
        connection = apsw.Connection(str(file))
        connection.set_busy_timeout(100)
        last = time.monotonic()
        while not self._over.wait(0.1):
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
    """Another process keeps the only writer, shorter and longer than the lease."""

    name = "write lock held by a stranger"
    every = 15.0
    outage = True

    def __init__(self, source: random.Random, file: Path, lease: float) -> None:
        super().__init__(source)
        self._file = file
        self._lease = lease

    def once(self) -> bool:
        code = (
            "import apsw, sys, time; c = apsw.Connection(sys.argv[1]); c.set_busy_timeout(10000);"
            "c.execute('begin immediate'); time.sleep(float(sys.argv[2]))"
        )
        seconds = self._lease * self.random.uniform(0.3, 1.5)
        return _python(code, str(self._file), str(seconds)) == 0


class LongWrites(Fault):
    """Another program writes all the time, for 100 ms each time. Nobody may lose a lease by that."""

    name = "another program in transactions of 100 ms"
    every = 12.0

    def __init__(self, source: random.Random, url: str) -> None:
        super().__init__(source)
        self.gaps: list[tuple[float, float]] = []
        """When the program itself waited for more than a second."""
        self._url = url

    def once(self) -> bool:
        with BusyWriter(self._url) as writer:
            time.sleep(self.random.uniform(2, 6))
        times = writer.commits()
        self.gaps += [(before, after) for before, after in pairwise(times) if after - before > 1]
        return len(times) > 1


def _python(code: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False).returncode


class PostgresHouse(House):
    """A server that keeps what it acknowledged, behind a proxy."""

    name = "PostgreSQL"

    def __init__(self, folder: Path, version: int | None = None) -> None:
        self._disk = Disk(folder / "disk", MEGABYTES)
        data = self._disk.folder / "data"
        settings = {"max_wal_size": "128MB", "wal_keep_size": 0, "max_connections": 200}
        self.server = PostgresServer(data, fsync=True, version=version, settings=settings).start()
        self.direct = self.server.create_database("chaos")
        with psycopg.connect(self.direct) as own:
            own.execute(TABLE)
            self._version = str(own.info.parameter_status("server_version"))
        with Holdfast(self.direct) as app:
            app.store.prepare()
        record_charges(self.direct)
        self.proxy = Proxy(self.direct)
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

    def about(self) -> str:
        return f"PostgreSQL {self._version}"

    def close(self) -> None:
        self.proxy.close()
        self.server.close()
        self._disk.close()


class ServerKilled(Fault):
    name = "server killed (SIGKILL)"
    every = 14.0
    outage = True

    def __init__(self, source: random.Random, server: PostgresServer, lock: threading.Lock) -> None:
        super().__init__(source)
        self._server = server
        self._lock = lock

    def once(self) -> bool:
        with self._lock:
            self._server.kill()
            time.sleep(self.random.choice([0, 0, 0.5, 2]))
            self._server.start()
        return True


class OfProxy(Fault):
    """A fault of the network."""

    def __init__(self, source: random.Random, proxy: Proxy) -> None:
        super().__init__(source)
        self.proxy = proxy


class ConnectionsCut(OfProxy):
    name = "all connections cut"
    every = 12.0

    def once(self) -> bool:
        self.proxy.cut()
        return True


class OfCommit(OfProxy):
    """The next COMMIT goes wrong, whoever says it; one such fault at a time."""

    def __init__(self, source: random.Random, proxy: Proxy, lock: threading.Lock) -> None:
        super().__init__(source, proxy)
        self._lock = lock

    def once(self) -> bool:
        with self._lock:
            self.arm()
            return self.proxy.fired.wait(5)

    @abstractmethod
    def arm(self) -> None: ...


class AnswerLost(OfCommit):
    """The server has committed, and nobody hears of it."""

    name = "answer to a COMMIT lost"
    every = 4.0

    def arm(self) -> None:
        self.proxy.lose_answer(COMMIT)


class RequestLost(OfCommit):
    name = "COMMIT lost on its way"
    every = 7.0

    def arm(self) -> None:
        self.proxy.lose_request(COMMIT)


class NetworkSlow(OfProxy):
    name = "network slow"
    every = 15.0
    outage = True

    def once(self) -> bool:
        self.proxy.delay = self.random.uniform(0.02, 0.2)
        try:
            time.sleep(self.random.uniform(1, 3))
        finally:
            self.proxy.delay = 0.0
        return True


class NetworkSilent(OfProxy):
    """Nothing comes through, and nothing is refused: shorter and longer than the lease."""

    name = "network silent (packets dropped)"
    every = 25.0
    outage = True

    def __init__(self, source: random.Random, proxy: Proxy, lease: float) -> None:
        super().__init__(source, proxy)
        self._lease = lease

    def once(self) -> bool:
        self.proxy.pause()
        try:
            time.sleep(self._lease * self.random.uniform(0.3, 1.6))
        finally:
            self.proxy.resume()
        return True
