"""The server to throw away: what it keeps through a power cut, and that nothing of it is left."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from holdfast.testing.server import PostgresServer

KILLED = """
import os, signal
from holdfast.testing.server import PostgresServer
server = PostgresServer(fsync=False).start()
print(server.data, server.url.split("host=")[1].split("/socket")[0], flush=True)
{ending}
"""


@pytest.fixture(scope="module")
def server():
    with PostgresServer(port=0, settings={"max_connections": 20}) as server:
        yield server


def ask(url, statement):
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_settings_reach_the_server_and_tcp_works(server):
    assert "127.0.0.1" in server.url
    assert ask(server.url, "select current_setting('max_connections'), current_setting('fsync')") == [("20", "on")]


def test_tcp_requires_the_password_and_the_socket_is_out_of_reach_for_others(server):
    for wrong in ("", ":wrong"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"postgresql://postgres{wrong}@127.0.0.1:{server.port}/postgres", passfile="/nowhere")
    folder = server._folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((server.data / "holdfast-password").stat().st_mode) == 0o600
    assert "holdfast-password" not in " ".join(server._command())
    with PostgresServer(fsync=False) as private:
        assert ask(private.url, "show listen_addresses") == [("",)]


def test_committed_data_outlive_a_power_cut_and_open_connections_do_not(server):
    url = server.create_database("cut")
    connection = psycopg.connect(url)
    connection.execute("create table kept as select 1 as n")
    connection.commit()
    connection.execute("insert into kept values (2)")
    server.kill()
    assert not server.running
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    connection.close()
    server.start()
    assert ask(url, "select n from kept") == [(1,)]
    assert "not properly shut down" in server.log()
    server.drop_database("cut")


def test_a_database_can_be_copied_from_a_template_and_dropped_under_its_users(server):
    template = server.create_database("template")
    with psycopg.connect(template) as connection:
        connection.execute("create table here (n int)")
    copy = server.create_database("copy", template="template")
    user = psycopg.connect(copy)
    assert user.execute("select count(*) from here").fetchone() == (0,)
    server.drop_database("copy")
    assert ask(server.url, "select count(*) from pg_database where datname = 'copy'") == [(0,)]
    user.close()


@pytest.mark.parametrize(
    "ending",
    ["", "raise ValueError", "os.kill(os.getpid(), signal.SIGINT)", "os.kill(os.getpid(), signal.SIGKILL)"],
    ids=["end", "exception", "ctrl-c", "sigkill"],
)
def test_no_server_and_no_folder_outlive_the_process_however_it_ends(ending):
    program = KILLED.format(ending=ending)
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    data, home = done.stdout.split()
    wait_until(lambda: not Path(data).exists() and not Path(home).exists() and data not in running_commands())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_server_alone(server):
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert server.running
    assert ask(server.url, "select 1") == [(1,)]


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(RuntimeError, match="no_such_setting"):
        PostgresServer(settings={"no_such_setting": 1}).start()


def running_commands():
    return "\n".join(command_of(process) for process in Path("/proc").glob("[0-9]*"))


def command_of(process):
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
