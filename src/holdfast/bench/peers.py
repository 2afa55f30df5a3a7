"""Runs the scripts that measure other libraries, and the hand-written SQL called `raw`, one repetition at a time.

They live outside this project, install what they need into places of their own, and answer in JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.bench.hosts import PostgresHost, SqliteHost, Unusable
from holdfast.bench.measure import Failed, Figures
from holdfast.bench.steps import ALONE, MANY

VARIABLE = "HOLDFAST_PEERS"
BESIDE = Path("..", "shared", "peers")
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Result:
    """What one repetition of one peer gave."""

    database: str
    subject: str
    figures: Figures
    failure: str | None
    details: dict[str, Any] = field(default_factory=dict)


_FIGURES: dict[str, Callable[[str], str]] = {
    "jobs": lambda _: "",
    "latency": lambda told: told.rpartition(" ")[2],
    "steps": lambda told: ALONE if "one run at a time" in told else MANY,
}


def find_script() -> Path:
    """The command of the peers' folder."""
    root = Path(__file__).resolve().parents[3]
    folder = Path(os.environ[VARIABLE]) if VARIABLE in os.environ else root / BESIDE
    script = folder / "peers.py"
    if not script.is_file():
        raise Unusable(
            f"there is no peers.py in {os.path.normpath(folder)}: set {VARIABLE} to the folder that has it,"
            " or leave --peers out"
        )
    return script.resolve()


class Peers:
    """Measures some libraries by the peers' own command. Without a server's URL it starts a server of its own."""

    def __init__(self, measure: str, names: Sequence[str], server: str | None, *, workers: int, quick: bool) -> None:
        self._measure = measure
        self._arguments = [measure, "--only", ",".join(names)]
        if measure == "jobs":
            self._arguments += ["--workers", str(workers)]
        self._names = names
        self._server = server
        self._quick = quick
        self._script = find_script()

    def check(self) -> None:
        """Refuse now what the command would refuse later, such as a name that it doesn't know."""
        command = [*self._command(), *self._arguments, "--help"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode != 0:
            said = asked.stderr.strip().splitlines() or ["no message"]
            raise Unusable(f"--peers: {said[-1].removeprefix('peers.py: error: ')}")

    def take(self) -> list[Result]:
        """One repetition of each."""
        options = ["--reps", "1", "--json", *(["--quick"] if self._quick else [])]
        server = ["--dsn", self._server] if self._server is not None else []
        output = _run([*self._command(), *server, *self._arguments, *options])
        try:
            answer = json.loads(output)
            missing = [
                Result(PostgresHost.name, name, {}, f"not measured: {why}")
                for name, why in answer["unavailable"].items()
            ]
            return [*missing, *self._results(answer)]
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"the peers' answer can't be read ({error!r}); what they said is above") from None

    def _results(self, answer: dict[str, Any]) -> list[Result]:
        """The answer has a line per figure; here are those of one library together."""
        found: dict[tuple[str, str], Result] = {}
        for line in answer["results"]:
            on_sqlite = SqliteHost.name in (line["variant"], line["measure"].rpartition(", ")[2])
            database = SqliteHost.name if on_sqlite else PostgresHost.name
            variant = "" if line["variant"] == SqliteHost.name else line["variant"]
            subject = f"{line['library']} {variant}".strip()
            details = {name: line[name] for name in ("count", "settings", "versions")}
            result = found.setdefault((database, subject), Result(database, subject, {}, line["failure"], details))
            figure = _FIGURES[self._measure](line["measure"])
            if line["values"]:
                result.figures[figure] = line["values"][0]
        return list(found.values())

    def _command(self) -> list[str]:
        """With the interpreter that has pip: they make environments of their own."""
        python = getattr(sys, "_base_executable", None) or sys.executable
        return [python, str(self._script)]


def _run(command: list[str]) -> str:
    """Run to the end and return what it printed; after an interruption let it clean up first."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        return process.communicate()[0]
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
