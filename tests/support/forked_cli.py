"""Run commands of the CLI in forks of one process that has imported it: a new interpreter takes 0.3 s for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PROGRAM = """
import json, os, sys
from holdfast.cli import main
from holdfast.cli import commands

for line in sys.stdin:
    folder, environment, arguments, output = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(os.path.join(output, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["holdfast", *arguments]
        code = 1
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Ended(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class ForkedCli:
    """A process that has imported the CLI, and forks for each command. `output`: an empty folder."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], cwd=output, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run a command in a folder, with no other variables in its environment."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **(env or {})}
        given = json.dumps([str(folder), environment, arguments, str(self._output)])
        print(given, file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return Ended(code, *((self._output / name).read_text() for name in ("stdout", "stderr")))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
