"""Virtual environments of peers, created on first use."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.benchmark import log

VARIABLE = "HOLDFAST_PEERS"
"""Names the folder of the environments; `.cache/peers` by default."""
DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "peers"
RETRY_DELAYS_S = (5, 20)
VERSIONS = """
import importlib.metadata as m, json, sys
print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))
"""


class PeerUnavailable(Exception):
    """A peer can't be installed here; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment of a peer."""

    python: Path
    versions: dict[str, str]


def environments_folder() -> Path:
    return Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)


def prepare(name: str, requirements: Sequence[str]) -> Environment:
    """Create the environment, unless it exists with the same requirements."""
    parent = environments_folder() / f"python{sys.version_info.major}.{sys.version_info.minor}"
    parent.mkdir(parents=True, exist_ok=True)
    folder, wanted = parent / name, "\n".join(requirements)
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    with _lock(parent / f"{name}.lock", name):
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            log(f"peers: installing {name} ({', '.join(requirements)}); this can take a minute")
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=False, symlinks=True)
            _install(python, requirements, name)
            stamp.write_text(wanted)
    return Environment(python, _versions(python, requirements))


@contextmanager
def _lock(path: Path, name: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"peers: waiting for another process to install {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(python: Path, requirements: Sequence[str], name: str) -> None:
    """Install with the base interpreter's pip. Retries with delays because package indexes throttle."""
    base_python = getattr(sys, "_base_executable", None) or sys.executable
    command = [base_python, "-m", "pip", "--python", str(python), "install", "--quiet", *requirements]
    for delay_s in (*RETRY_DELAYS_S, None):
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        if outcome.returncode == 0:
            return
        why = _failure_reason(outcome.stderr)
        if delay_s is None or "Requires-Python" in outcome.stderr or "No module named pip" in why:
            raise PeerUnavailable(f"pip failed: {why}")
        log(f"peers: {name}: {why}; retrying in {delay_s} s")
        time.sleep(delay_s)


def _failure_reason(output: str) -> str:
    """Return the most informative line of pip's output."""
    if wanted := re.findall(r"Requires-Python ([^;\s]+)", output):
        return f"needs Python {wanted[-1]}, this is {platform.python_version()}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return next(iter(errors), lines[-1] if lines else "no output")


def _versions(python: Path, requirements: Sequence[str]) -> dict[str, str]:
    names = [requirement.partition("==")[0].partition("[")[0] for requirement in requirements]
    outcome = subprocess.run([python, "-c", VERSIONS, *names], capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise PeerUnavailable(f"environment {python.parent.parent.name} is broken: {_failure_reason(outcome.stderr)}")
    found: dict[str, str] = json.loads(outcome.stdout)
    return found
