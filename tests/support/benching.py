"""The benchmarks' command in a process of its own, and whether it left others behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LONGEST = 120


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def processes_that_name(path: Path) -> list[str]:
    listing = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if str(path) in line]
