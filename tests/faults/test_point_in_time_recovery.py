"""A PostgreSQL server restored to an earlier time: runs are as they were then, and continue."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from holdfast import Context, Holdfast
from holdfast.testing.server import PostgresServer
from tests.support.wait_until import wait_until

PORT = 5432  # of a socket in a folder of its own


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="hf-pitr-", dir="/tmp"))  # short, for the socket; others may enter it
    made.chmod(0o777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def declare(url):
    app = Holdfast(url)

    @app.task(name="order")
    async def order(ctx: Context, number: int) -> int:
        await ctx.wait_for("go")
        return number

    return app


@pytest.mark.slow
def test_runs_continue_from_the_time_to_which_the_server_was_restored(folder):
    archive, base = folder / "archive", folder / "base"
    archive.mkdir()
    archive.chmod(0o777)
    settings = {"archive_mode": "on", "archive_command": f"test ! -f {archive}/%f && cp %p {archive}/%f"}
    with PostgresServer(port=0, fsync=False, settings=settings) as server:
        url = server.create_database("shop")
        with declare(url) as app, psycopg.connect(url, autocommit=True) as admin:
            waiting = app.remote("order").enqueue(1)
            app.worker().drain(timeout=60)
            admin.execute("select pg_backup_start('base', true)")
            subprocess.run(["cp", "-a", server.data, base], check=True)
            (label,) = admin.execute("select labelfile from pg_backup_stop(false)").fetchone()
            ready = app.remote("order").enqueue(2)
            admin.execute("select pg_create_restore_point('noon')")
            app.emit("go")
            app.worker().drain(timeout=60)
            late = app.remote("order").enqueue(3)
            (segment,) = admin.execute("select pg_walfile_name(pg_switch_wal())").fetchone()
            wait_until(lambda: (archive / segment).exists(), 60)
        owner, program = server.data.stat(), server._program("postgres")
    (base / "backup_label").write_text(label)
    (base / "postmaster.pid").unlink(missing_ok=True)
    (base / "recovery.signal").touch()
    with (base / "postgresql.auto.conf").open("a") as conf:
        conf.write(
            f"\nrestore_command = 'cp {archive}/%f %p'\nrecovery_target_name = 'noon'\n"
            "recovery_target_action = 'promote'\narchive_mode = off\n"
        )
    for path in (base, *base.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    base.chmod(0o700)
    command = [program, "-D", str(base), "-k", str(folder), "-p", str(PORT), "-c", "listen_addresses="]
    restored = f"postgresql:///shop?host={folder}&port={PORT}&user=postgres"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, user=owner.st_uid, group=owner.st_gid, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_primary(restored), 120, lambda: (folder / "log").read_text())
        with declare(restored) as app:
            states = {run.id: run.state for run in app.runs()}
            assert states == {waiting.id: "waiting", ready.id: "ready"}
            assert late.id not in states
            app.emit("go")
            app.worker().drain(timeout=60)
            assert [app.get_run(run.id).result(timeout=60) for run in (waiting, ready)] == [1, 2]
    finally:
        process.terminate()
        process.wait()


def is_primary(url):
    try:
        with psycopg.connect(url) as connection:
            return connection.execute("select not pg_is_in_recovery()").fetchone()[0]
    except psycopg.OperationalError:
        return False
