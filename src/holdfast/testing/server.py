"""A PostgreSQL server to throw away: for tests, benchmarks and crash trials.

    with PostgresServer(fsync=False) as server:
        url = server.create_database()

Nothing is left behind: the server ends with the `with` block, at the latest with this process, however that ends (a
small watcher sees to it when the process is killed). `kill()` ends it as a power cut would, `start()` takes the same
data up again. Talking to it needs psycopg, imported late.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode
from uuid import uuid4

from holdfast.database import open_database
from holdfast.store import Store
from holdfast.testing import postgres_binaries, server_watchdog

if TYPE_CHECKING:
    from psycopg import Connection

USER = "postgres"
SOCKET_PORT = 5432  # only part of the socket's file name
START_SECONDS = 60.0
STOP_SECONDS = 20.0


class PostgresServer:
    """One server on one data folder.

    `data` is where its data live, kept at the end; without it they are temporary, and in memory when `fsync` is off and
    there is room, where creating a database is much faster. `port` makes it listen on
    127.0.0.1, on a free port for 0; without it there is only a socket. `settings` are PostgreSQL's own, by name.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        port: int | None = None,
        fsync: bool = True,
        shared_buffers: str = "128MB",
        settings: Mapping[str, str | int] | None = None,
        version: int | None = None,
    ) -> None:
        self.port = _free_port() if port == 0 else port
        self.settings: dict[str, str | int] = {
            "fsync": "on" if fsync else "off",
            "shared_buffers": shared_buffers,
            **(settings or {}),
        }
        self._version = version
        self._owner = postgres_binaries.ServerUser.fitting()
        self._data = data
        self._in_memory = not fsync
        self._home: Path | None = None
        self._temporary: list[Path] = []
        self._install: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._starter = 0

    @property
    def url(self) -> str:
        """The URL of the database `postgres`, from which others are created."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The URL of a database on this server."""
        if self.port is not None:
            return f"postgresql://{USER}@127.0.0.1:{self.port}/{quote(database)}"
        where = {"host": str(self._folder / "socket"), "port": SOCKET_PORT, "user": USER}
        return f"postgresql:///{quote(database)}?{urlencode(where, safe='/')}"

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def data(self) -> Path:
        """The data folder."""
        if self._data is None:
            raise RuntimeError("the PostgreSQL server has no data yet: call start() first")
        return self._data

    def start(self) -> Self:
        """Start the server, on new data the first time, and wait until it takes connections."""
        if self.running:
            return self
        self._starter = os.getpid()
        atexit.register(self.close)
        self._prepare()
        with (self._folder / "server.log").open("ab") as log:
            self._process = self._owner.popen(self._command(), self._folder, stdout=log.fileno())
        self._watcher = self._watch(self._process.pid)
        self._wait_until_ready(self._process)
        return self

    def stop(self) -> None:
        """Shut down in order: sessions are ended, a checkpoint is written."""
        for request in (signal.SIGINT, signal.SIGQUIT):
            if self._process is None or not self.running:
                break
            self._process.send_signal(request)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        if self.running:
            self.kill()
        self._dismiss_watcher()

    def kill(self) -> None:
        """End it as a power cut would: nothing is written any more by the server or any of its processes."""
        if self._process is None:
            return
        if self.running:
            os.kill(self._process.pid, signal.SIGSTOP)  # so that it neither starts processes nor reacts to dying ones
            victims = list(_children(self._process.pid))
            for pid in (*victims, self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            _wait_for_end(victims)
        self._dismiss_watcher()

    def close(self) -> None:
        """Stop, and remove all that was temporary. In a forked child it does nothing: the server isn't the child's."""
        if self._starter != os.getpid():
            return
        self.stop()
        atexit.unregister(self.close)
        for folder in self._temporary:
            shutil.rmtree(folder, ignore_errors=True)
            if folder == self._data:
                self._data = None
        self._temporary.clear()
        self._home = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def copy_to(self, data: Path) -> None:
        """Make the data of a standby: a copy of this server's, whose server will follow this one. Needs a port."""
        source = f"host=127.0.0.1 port={self.port} user={USER}"
        command = [self._program("pg_basebackup"), "-D", str(data), "-R", "-X", "stream", "-c", "fast", "-d", source]
        code, output = self._owner.run(command, self._folder)
        if code != 0:
            raise RuntimeError(f"pg_basebackup to {data} failed: {output.strip()}")

    def create_database(self, name: str | None = None, template: str | None = None) -> str:
        """Create a database, a copy of `template` when given, and return its URL."""
        return create_database(self.url, name, template)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        drop_database(self.url, name)

    def dump(self, url: str) -> str:
        """A database of this server as SQL, with its rows as inserts."""
        command = [self._program("pg_dump"), "--no-owner", "--inserts", "-d", url]
        code, output = self._owner.run(command, self._folder)
        if code != 0:
            raise RuntimeError(f"pg_dump of {url} failed: {output.strip()}")
        return output

    def log(self) -> str:
        """All that the server wrote to its log."""
        return (self._folder / "server.log").read_text(errors="replace")

    # Starting

    @property
    def _folder(self) -> Path:
        if self._home is None:
            raise RuntimeError("the PostgreSQL server was not started, or is closed: call start() first")
        return self._home

    def _prepare(self) -> None:
        """Make the folders, and the data by initdb, unless they are there."""
        if self._home is None:
            self._home = self._make_temporary(_short_folder())
            (self._home / "socket").mkdir()
            self._owner.take(self._home)
            self._install = postgres_binaries.usable(postgres_binaries.find(self._version), self._owner, self._home)
        if self._data is None:
            self._data = self._make_temporary(_memory_folder() if self._in_memory else None)
        if (self.data / "PG_VERSION").exists():
            return
        self.data.mkdir(parents=True, exist_ok=True)
        self._owner.take(self.data)
        options = ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-U", USER, "-D", str(self.data)]
        code, output = self._owner.run([self._program("initdb"), *options], self._folder)
        if code != 0:
            hint = " (the server runs as nobody, who must be able to reach the data)" if self._owner.uid else ""
            raise RuntimeError(f"initdb failed on {self.data}{hint}: {output.strip()}")

    def _make_temporary(self, where: str | None) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=where))
        self._temporary.append(folder)
        return folder

    def _program(self, name: str) -> str:
        assert self._install is not None
        return str(self._install / "bin" / name)

    def _command(self) -> list[str]:
        listen = "" if self.port is None else "127.0.0.1"
        settings = {
            "listen_addresses": listen,
            "port": self.port or SOCKET_PORT,
            "unix_socket_directories": self._folder / "socket",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", str(self.data), *options]

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """The server writes its state into the eighth line of postmaster.pid, under its own process number."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                    return
            time.sleep(0.02)
        said = self.log()[-2000:]
        self.stop()
        raise RuntimeError(f"PostgreSQL didn't start on {self.data}; the end of its log:\n{said}")

    def _watch(self, pid: int) -> subprocess.Popen[bytes]:
        """Start the watcher, which ends the server when this process is gone without having done so."""
        temporary = map(str, self._temporary)
        return subprocess.Popen(
            [sys.executable, "-I", server_watchdog.__file__, str(pid), str(self.data), *temporary],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _dismiss_watcher(self) -> None:
        if self._watcher is None:
            return
        self._watcher.kill()
        self._watcher.wait()
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()
        self._watcher = None


class DatabaseFactory:
    """Those of one server, for one run of tests. All are made over one connection: to open one takes long, too."""

    def __init__(self, server_url: str) -> None:
        self._server = server_url
        self._templates: dict[str, str] = {}
        self._connection: Connection[Any] | None = None

    def create(self, schema: str) -> str:
        """The URL of a new one, with tables in that schema, and nothing in them."""
        if schema not in self._templates:
            url = self.create_empty()
            store = Store(open_database(url, schema))
            store.prepare()
            store.close()
            self._templates[schema] = database_of(url)
        return self.create_empty(self._templates[schema])

    def create_empty(self, template: str | None = None) -> str:
        """The URL of a new one that is a copy of the template, or has no tables."""
        name = new_name()
        create_on(self._connect(), name, template)
        return url_with_database(self._server, name)

    def drop(self, url: str) -> None:
        drop_on(self._connect(), database_of(url))

    def close(self) -> None:
        for name in self._templates.values():
            drop_on(self._connect(), name)
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> Connection[Any]:
        import psycopg

        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._server, autocommit=True)
        return self._connection


def create_database(server_url: str, name: str | None = None, template: str | None = None) -> str:
    """Create a database on any server, a copy of `template` when given, and return its URL."""
    import psycopg

    name = name or new_name()
    with psycopg.connect(server_url, autocommit=True) as connection:
        create_on(connection, name, template)
    return url_with_database(server_url, name)


def drop_database(server_url: str, name: str) -> None:
    """Drop a database on any server, whoever is connected to it."""
    import psycopg

    with psycopg.connect(server_url, autocommit=True) as connection:
        drop_on(connection, name)


def new_name() -> str:
    """For a database that nobody else has."""
    return f"holdfast_{uuid4().hex}"


def create_on(connection: Connection[Any], name: str, template: str | None = None) -> None:
    """Create a database over a connection to its server."""
    from psycopg import sql

    statement = sql.SQL("create database {} template {}").format(
        sql.Identifier(name), sql.Identifier(template or "template0")
    )
    if connection.info.server_version >= 150000:
        statement += sql.SQL(" strategy file_copy")  # three times as fast as the default for small ones
    connection.execute(statement)


def drop_on(connection: Connection[Any], name: str) -> None:
    """Drop a database over a connection to its server, whoever is connected to it."""
    from psycopg import sql

    connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def url_with_database(url: str, name: str) -> str:
    """The same server, another database. Takes libpq's `key=value` form too, and always returns a URL."""
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(url, dbname=name)
    del parts["dbname"]
    return f"postgresql:///{quote(name)}?{urlencode(parts, safe='/', quote_via=quote)}"


def database_of(url: str) -> str:
    """The name of the database that a URL leads to."""
    from psycopg.conninfo import conninfo_to_dict

    return str(conninfo_to_dict(url)["dbname"])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _short_folder() -> str | None:
    """Where temporary folders are, unless a socket's path there would be over the system's 107 bytes."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 else None


def _memory_folder() -> str | None:
    """A folder in memory with a gigabyte to spare, if there is one: without fsync the disk only costs time."""
    folder = "/dev/shm"
    roomy = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 2**30
    return folder if roomy else None


def _children(pid: int) -> Iterator[int]:
    """The processes started by `pid`: from /proc, or by `ps` where there is none."""
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    for stat in stats:
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()  # after the name, which may hold anything
            if int(fields[1]) == pid:
                yield int(stat.parent.name)
    if not stats:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        for child, parent in (line.split() for line in listing.splitlines()):
            if int(parent) == pid:
                yield int(child)


def _wait_for_end(pids: list[int]) -> None:
    """Wait until none of the processes runs; one that nobody has reaped yet doesn't run."""
    for pid in pids:
        while _runs(pid):
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not Path("/proc/self").exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
