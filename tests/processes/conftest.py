"""An app, and a look at the processes of this one."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from holdfast import Holdfast


@pytest.fixture
def app(database_url):
    with Holdfast(database_url) as app:
        yield app


@pytest.fixture
def mark(tmp_path):
    """A file that user code leaves its process ids in."""
    return Mark(tmp_path / "mark")


class Mark(str):
    """The path of the file, and who wrote into it."""

    __slots__ = ()

    def __new__(cls, path: Path):
        return super().__new__(cls, path)

    def pids(self) -> list[int]:
        path = Path(self)
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def children():
    """The processes for user code that this test process has now, zombies too."""

    def look() -> list[psutil.Process]:
        own = psutil.Process(os.getpid()).children()
        return [
            child
            for child in own
            if child.status() == psutil.STATUS_ZOMBIE or "child_main" in " ".join(child.cmdline())
        ]

    return look
