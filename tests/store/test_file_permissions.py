"""SQLite files are for their owner only, and files that another user may have planted are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.database.planted_files import refuse_planted_files
from holdfast.errors import ConfigError

OTHER_UID = 54_321
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can create files of another user"
)


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def shared(tmp_path):
    """A directory that everyone can write to, like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def enqueue(file: Path) -> None:
    with Holdfast(f"sqlite:///{file}") as app:
        app.remote("job").enqueue(1)


def test_the_database_and_all_files_beside_it_are_for_their_owner_only(tmp_path, open_umask):
    with Holdfast(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.remote("job").enqueue(1)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        assert modes == dict.fromkeys(("jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-lock"), 0o600)


def test_files_beside_a_shared_database_have_its_mode(tmp_path, open_umask):
    """An operator may open the file to a group; then the log must be open to it too."""
    enqueue(tmp_path / "jobs.db")
    (tmp_path / "jobs.db-lock").unlink()
    (tmp_path / "jobs.db").chmod(0o660)
    with Holdfast(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.remote("job").enqueue(1)
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o660}


@as_root
def test_a_link_that_another_user_planted_is_refused(shared):
    victim = shared.parent / "victim"
    victim.write_text("precious")
    (shared / "jobs.db").symlink_to(victim)
    os.lchown(shared / "jobs.db", OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigError, match=r"symbolic link of another user \(uid 54321\)"):
        enqueue(shared / "jobs.db")
    assert victim.read_text() == "precious"


@as_root
def test_a_planted_link_to_a_directory_is_refused(shared):
    (shared.parent / "elsewhere").mkdir()
    (shared / "data").symlink_to(shared.parent / "elsewhere")
    os.lchown(shared / "data", OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigError, match="symbolic link of another user"):
        enqueue(shared / "data" / "jobs.db")
    assert list((shared.parent / "elsewhere").iterdir()) == []


@as_root
def test_a_file_that_another_user_planted_is_refused(shared):
    """Its owner could read every argument and result."""
    (shared / "jobs.db").touch(0o666)
    os.chown(shared / "jobs.db", OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigError, match="belongs to another user"):
        enqueue(shared / "jobs.db")
    assert (shared / "jobs.db").stat().st_size == 0


@as_root
@pytest.mark.parametrize("name", ["own/jobs.db", "own.db"])
def test_a_planted_link_behind_an_own_link_is_refused(shared, name):
    """Whether the own link stands for the directory or for the file."""
    (shared.parent / "elsewhere").mkdir()
    (shared / "data").symlink_to(shared.parent / "elsewhere")
    os.lchown(shared / "data", OTHER_UID, OTHER_UID)
    (shared.parent / "own").symlink_to(shared / "data")
    (shared.parent / "own.db").symlink_to(shared / "data" / "jobs.db")
    with pytest.raises(ConfigError, match="data is a symbolic link of another user"):
        enqueue(shared.parent / name)
    assert list((shared.parent / "elsewhere").iterdir()) == []


def test_links_in_a_loop_end(tmp_path):
    (tmp_path / "a").symlink_to("./b")
    (tmp_path / "b").symlink_to("sub/../a")
    (tmp_path / "sub").mkdir()
    refuse_planted_files(str(tmp_path / "a"))


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", "-lock"])
def test_a_link_in_place_of_a_journal_is_refused(tmp_path, suffix):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"jobs.db{suffix}").symlink_to(victim)
    with pytest.raises(ConfigError, match=f"jobs.db{suffix} is a symbolic link"):
        enqueue(tmp_path / "jobs.db")
    assert victim.read_text() == "precious"


def test_own_links_and_own_files_are_followed(shared):
    data = shared.parent / "data"
    data.mkdir()
    (shared / "jobs.db").symlink_to(data / "real.db")
    enqueue(shared / "jobs.db")
    enqueue(shared / "jobs.db")
    assert (data / "real.db").exists()


@as_root
def test_links_in_a_directory_of_their_owner_are_followed(tmp_path):
    """Root runs a worker in the directory of another user, who could replace every file there anyway."""
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    data.mkdir()
    (home / "jobs.db").symlink_to(data / "real.db")
    os.chown(home, OTHER_UID, OTHER_UID)
    os.lchown(home / "jobs.db", OTHER_UID, OTHER_UID)
    enqueue(home / "jobs.db")
    assert (data / "real.db").exists()
