"""A virtual environment per peer, made the first time that it is asked for and kept."""

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

from benchmarks.measure import note

VARIABLE = "HOLDFAST_PEERS"
"""Names the folder of the environments; `.cache/peers` by default."""
DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "peers"
WAITS = (5, 20)
VERSIONS = """
import importlib.metadata as m, json, sys
print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))
"""


class Unavailable(Exception):
    """Why a peer can't be measured here."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with the packages of one peer."""

    python: Path
    versions: dict[str, str]


def home() -> Path:
    return Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)


def prepare(name: str, requirements: Sequence[str]) -> Environment:
    """Make the environment, unless it is there with the same requirements."""
    place = home() / f"python{sys.version_info.major}.{sys.version_info.minor}"
    place.mkdir(parents=True, exist_ok=True)
    folder, wanted = place / name, "\n".join(requirements)
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    with _locked(place / f"{name}.lock", name):
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            note(f"peers: installing {name} ({', '.join(requirements)}); this can take a minute")
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=False, symlinks=True)
            _install(python, requirements, name)
            stamp.write_text(wanted)
    return Environment(python, _versions(python, requirements))


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"peers: waiting for another process that installs {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(python: Path, requirements: Sequence[str], name: str) -> None:
    """With the pip of the interpreter below ours. Registries throttle at times: wait and try again."""
    below = getattr(sys, "_base_executable", None) or sys.executable
    command = [below, "-m", "pip", "--python", str(python), "install", "--quiet", *requirements]
    for wait in (*WAITS, None):
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        if outcome.returncode == 0:
            return
        why = _reason(outcome.stderr)
        if wait is None or "Requires-Python" in outcome.stderr or "No module named pip" in why:
            raise Unavailable(f"pip couldn't install it: {why}")
        note(f"peers: {name}: {why}; trying again in {wait} s")
        time.sleep(wait)


def _reason(said: str) -> str:
    """The line of pip's complaint that tells the most."""
    if wanted := re.findall(r"Requires-Python ([^;\s]+)", said):
        return f"it needs Python {wanted[-1]}, this is {platform.python_version()}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return next(iter(errors), lines[-1] if lines else "it said nothing")


def _versions(python: Path, requirements: Sequence[str]) -> dict[str, str]:
    names = [requirement.partition("==")[0].partition("[")[0] for requirement in requirements]
    outcome = subprocess.run([python, "-c", VERSIONS, *names], capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise Unavailable(f"its environment {python.parent.parent.name} is broken: {_reason(outcome.stderr)}")
    found: dict[str, str] = json.loads(outcome.stdout)
    return found
