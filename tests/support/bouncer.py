"""pgbouncer in transaction mode, with fewer server connections than clients."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.testing.postgres_binaries import ServerUser
from tests.support.wait_until import wait_until

CONNECTIONS = 4
SETTINGS = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 200
logfile = {folder}/log
{more}
"""


def program() -> str | None:
    """Return the path of pgbouncer, or None if it isn't installed."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextlib.contextmanager
def bouncer(url: str, more: str = "") -> Iterator[str]:
    """Start pgbouncer in front of a server and yield the URL of the same database through it."""
    given = conninfo_to_dict(url)
    owner = ServerUser.default()
    with tempfile.TemporaryDirectory(prefix="holdfast-bouncer-") as name, socket.socket() as probe:
        folder = Path(name)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        (folder / "users").write_text('"postgres" ""\n')
        text = SETTINGS.format(
            host=given["host"], port=given["port"], listen=port, folder=folder, connections=CONNECTIONS, more=more
        )
        (folder / "settings").write_text(text)
        owner.take(folder)
        process = owner.popen([str(program()), str(folder / "settings")], folder, stdout=subprocess.DEVNULL)
        try:
            through = f"postgresql://postgres@127.0.0.1:{port}/{given['dbname']}?sslmode=disable&gssencmode=disable"
            wait_until(lambda: _answers(through), what=f"pgbouncer: {folder / 'log'}")
            yield through
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
        return connection.execute("select 1").fetchone() == (1,)
    return False
