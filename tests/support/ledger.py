"""An append-only record of effects outside the database, written by task code: one line per effect."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path


class Ledger:
    """A file that several processes append to. Lines shorter than a page are written atomically."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def write(self, *words: object) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, (" ".join(map(str, words)) + "\n").encode())
        finally:
            os.close(file)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def words(self) -> list[list[str]]:
        return [line.split() for line in self.lines()]

    def counts(self) -> Counter[str]:
        return Counter(self.lines())
