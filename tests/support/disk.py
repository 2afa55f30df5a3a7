"""A small file system that a test can fill."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class Disk:
    """A file system in memory that can be shrunk to its used size.

    Only root can mount it. Otherwise it is an ordinary folder, and `missing` says why.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self._size = f"{megabytes}m"
        folder.mkdir(mode=0o755)
        self.missing: str | None = None
        if os.geteuid() != 0:
            self.missing = "only root can mount a file system to fill"
        elif _mount("-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(folder)) != 0:
            self.missing = "no tmpfs can be mounted here"

    def fill(self) -> bool:
        """Shrink the file system until it is full."""
        facts = os.statvfs(self.folder)
        used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
        return any(self._resize(f"{used + more}") for more in (0, 2**16, 2**20, 2**22))

    def clear(self) -> None:
        if not self._resize(self._size):
            raise RuntimeError(f"the file system at {self.folder} can't be resized")

    def close(self) -> None:
        if self.missing is None:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def _resize(self, size: str) -> bool:
        return _mount("-o", f"remount,size={size}", str(self.folder)) == 0


def _mount(*options: str) -> int:
    try:
        return subprocess.run(["mount", *options], capture_output=True, check=False).returncode
    except FileNotFoundError:
        return 127
