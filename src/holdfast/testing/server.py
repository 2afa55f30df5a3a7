"""A temporary PostgreSQL server for tests, benchmarks and crash tests.

The server stops at the end of its `with` block or when this process ends. If the process is killed, a watchdog process
cleans up. psycopg is imported on demand.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
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
SOCKET_PORT = 5432  # Only part of the socket's file name.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
PASSWORD_FILE = "holdfast-password"
"""Part of the data, so that another server on the same data, or on a copy, has the same password."""


class PostgresServer:
    """A PostgreSQL server on its own data directory.

    `kill()` simulates a power cut; `start()` then continues with the same data. It can be reached only through a Unix
    socket in a directory of its user, unless `port` is set; TCP requires a password, which is part of the URL.

    Example:
        ```python
        with PostgresServer(fsync=False) as server:
            url = server.create_database()
        ```

    Args:
        data: The data directory, kept at the end. Defaults to a temporary one, in memory if `fsync` is off and there
            is room.
        port: Listen on this port of 127.0.0.1; 0 picks a free one. Defaults to a Unix socket only.
        fsync: Whether PostgreSQL syncs to disk.
        shared_buffers: PostgreSQL's setting.
        settings: Other PostgreSQL settings by name.
        version: The major version. Defaults to the newest one found.
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
        self._owner = postgres_binaries.ServerUser.default()
        self._data = data
        self._in_memory = not fsync
        self._home: Path | None = None
        self._temporary: list[Path] = []
        self._install: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._starter = 0

    @property
    def url(self) -> str:
        """The URL of the `postgres` database."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the URL of a database on this server."""
        if self.port is not None:
            return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{quote(database)}"
        where = {"host": str(self.socket_folder), "port": SOCKET_PORT, "user": USER}
        return f"postgresql:///{quote(database)}?{urlencode(where, safe='/')}"

    @property
    def socket_folder(self) -> Path:
        """The directory of the Unix socket. Exists once the server has been started."""
        return self._folder / "socket"

    @property
    def password(self) -> str:
        """The password of the user `postgres`."""
        return (self.data / PASSWORD_FILE).read_text()

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def data(self) -> Path:
        """The data directory."""
        if self._data is None:
            raise RuntimeError("the PostgreSQL server has no data directory yet: call start() first")
        return self._data

    def start(self) -> Self:
        """Start the server and wait until it accepts connections. The first start creates the data."""
        if self.running:
            return self
        self._starter = os.getpid()
        atexit.register(self.close)
        self._prepare()
        with (self._folder / "server.log").open("ab") as log:
            self._process = self._owner.popen(self._command(), self._folder, stdout=log.fileno())
        self._watchdog = self._start_watchdog(self._process.pid)
        self._wait_until_ready(self._process)
        return self

    def stop(self) -> None:
        """Shut down cleanly."""
        for request in (signal.SIGINT, signal.SIGQUIT):
            if self._process is None or not self.running:
                break
            self._process.send_signal(request)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        if self.running:
            self.kill()
        self._dismiss_watchdog()

    def kill(self) -> None:
        """Kill the server and all its processes, as a power cut would."""
        if self._process is None:
            return
        if self.running:
            os.kill(self._process.pid, signal.SIGSTOP)  # It must not start processes or react to dying ones.
            victims = list(_children(self._process.pid))
            for pid in (*victims, self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            _wait_for_end(victims)
        self._dismiss_watchdog()

    def close(self) -> None:
        """Stop, and remove temporary directories. Does nothing in a forked child."""
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
        """Copy the data for a standby server that follows this one. Needs a port."""
        source = f"host=127.0.0.1 port={self.port} user={USER} password={self.password}"
        command = [self._program("pg_basebackup"), "-D", str(data), "-R", "-X", "stream", "-c", "fast", "-d", source]
        code, output = self._owner.run(command, self._folder)
        if code != 0:
            raise RuntimeError(f"pg_basebackup to {data} failed: {output.strip()}")

    def create_database(self, name: str | None = None, template: str | None = None) -> str:
        """Create a database, a copy of `template` when given, and return its URL."""
        return create_database(self.url, name, template)

    def drop_database(self, name: str) -> None:
        """Drop a database and disconnect its clients."""
        drop_database(self.url, name)

    def dump(self, url: str) -> str:
        """Return a dump of a database as SQL inserts."""
        command = [self._program("pg_dump"), "--no-owner", "--inserts", "-d", url]
        code, output = self._owner.run(command, self._folder)
        if code != 0:
            raise RuntimeError(f"pg_dump of {url} failed: {output.strip()}")
        return output

    def log(self) -> str:
        """Return the server's log."""
        return (self._folder / "server.log").read_text(errors="replace")

    # Start

    @property
    def _folder(self) -> Path:
        if self._home is None:
            raise RuntimeError("the PostgreSQL server is not running: call start() first")
        return self._home

    def _prepare(self) -> None:
        """Create the directories, and the data with initdb, unless they exist."""
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
        password = self._folder / PASSWORD_FILE
        password.touch(mode=0o600)
        password.write_text(secrets.token_hex(16))
        self._owner.take(password)
        access = ["--auth-local", "trust", "--auth-host", "scram-sha-256", "--pwfile", str(password)]
        options = ["-E", "UTF8", "--locale=C", "--no-sync", "-U", USER, "-D", str(self.data)]
        code, output = self._owner.run([self._program("initdb"), *access, *options], self._folder)
        if code != 0:
            hint = " (the server runs as user nobody, who needs access to the data)" if self._owner.uid else ""
            raise RuntimeError(f"initdb failed on {self.data}{hint}: {output.strip()}")
        shutil.copy(password, self.data / PASSWORD_FILE)
        self._owner.take(self.data / PASSWORD_FILE)

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
            "unix_socket_directories": self.socket_folder,
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", str(self.data), *options]

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until line 8 of postmaster.pid, which holds the server's state, says `ready`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                    return
            time.sleep(0.02)
        log_tail = self.log()[-2000:]
        self.stop()
        raise RuntimeError(f"PostgreSQL did not start on {self.data}; the end of its log:\n{log_tail}")

    def _start_watchdog(self, pid: int) -> subprocess.Popen[bytes]:
        """Start the watchdog, which stops the server if this process dies."""
        temporary = map(str, self._temporary)
        return subprocess.Popen(
            [sys.executable, "-I", server_watchdog.__file__, str(pid), str(self.data), *temporary],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is None:
            return
        self._watchdog.kill()
        self._watchdog.wait()
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
        self._watchdog = None


class DatabaseFactory:
    """Creates private databases for tests from templates with tables, over one connection."""

    def __init__(self, server_url: str) -> None:
        self._server = server_url
        self._templates: dict[str, str] = {}
        self._connection: Connection[Any] | None = None

    def create(self, schema: str) -> str:
        """Create a database with empty tables in this schema and return its URL."""
        if schema not in self._templates:
            url = self.create_empty()
            store = Store(open_database(url, schema))
            store.prepare()
            store.close()
            self._templates[schema] = database_of(url)
        return self.create_empty(self._templates[schema])

    def create_empty(self, template: str | None = None) -> str:
        """Create a database from a template, or without tables, and return its URL."""
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
    """Create a database on a server, from `template` if given, and return its URL."""
    import psycopg

    name = name or new_name()
    with psycopg.connect(server_url, autocommit=True) as connection:
        create_on(connection, name, template)
    return url_with_database(server_url, name)


def drop_database(server_url: str, name: str) -> None:
    """Drop a database on a server and disconnect its clients."""
    import psycopg

    with psycopg.connect(server_url, autocommit=True) as connection:
        drop_on(connection, name)


def new_name() -> str:
    """Return a unique database name."""
    return f"holdfast_{uuid4().hex}"


def create_on(connection: Connection[Any], name: str, template: str | None = None) -> None:
    """Create a database over an existing connection."""
    from psycopg import sql

    statement = sql.SQL("create database {} template {}").format(
        sql.Identifier(name), sql.Identifier(template or "template0")
    )
    if connection.info.server_version >= 150000:
        statement += sql.SQL(" strategy file_copy")  # Three times as fast as the default for small databases.
    connection.execute(statement)


def drop_on(connection: Connection[Any], name: str) -> None:
    """Drop a database over an existing connection and disconnect its clients."""
    from psycopg import sql

    connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def url_with_database(url: str, name: str) -> str:
    """Return the URL of another database on the same server. Also accepts libpq's `key=value` form."""
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(url, dbname=name)
    del parts["dbname"]
    return f"postgresql:///{quote(name)}?{urlencode(parts, safe='/', quote_via=quote)}"


def database_of(url: str) -> str:
    """Return the database name in a URL."""
    from psycopg.conninfo import conninfo_to_dict

    return str(conninfo_to_dict(url)["dbname"])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _short_folder() -> str | None:
    """Return a directory whose socket paths fit into the system's limit of 107 bytes."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 else None


def _memory_folder() -> str | None:
    """Return a directory in memory with at least 1 GB free, if there is one."""
    folder = "/dev/shm"
    roomy = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 2**30
    return folder if roomy else None


def _children(pid: int) -> Iterator[int]:
    """Yield the children of `pid`, from /proc or, where that is missing, from `ps`."""
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    for stat in stats:
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()  # After the name, which may contain anything.
            if int(fields[1]) == pid:
                yield int(stat.parent.name)
    if not stats:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        for child, parent in (line.split() for line in listing.splitlines()):
            if int(parent) == pid:
                yield int(child)


def _wait_for_end(pids: list[int]) -> None:
    """Wait until none of the processes runs. Zombies count as finished."""
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
