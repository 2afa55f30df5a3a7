"""Start Python programs as forks of one process that has imported Holdfast: a new interpreter takes 0.3 s for each.

Run as a program, this module is that process, the server. It answers one request after the other over a socket:
`start`, with the file descriptors of the standard streams, answers the new process's id; `poll` answers its exit code
once it has ended. A test process starts its server with the first program and keeps it until its end.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = [
    "concurrent.futures.thread", "holdfast.cli", "holdfast.cli.commands", "holdfast.control",
    "holdfast.database.postgres", "holdfast.database.sqlite", "holdfast.engine.startup", "holdfast.engine.worker",
    "psycopg", "uvloop",
]  # fmt: skip
MAX_REQUEST_BYTES = 1_000_000


def can_fork(command: Sequence[str], env: dict[str, str]) -> bool:
    """Return whether a fork does the same as a new interpreter: it can't take options or settings of Python."""
    settings = {name for name in env if name.startswith("PYTHON")} - {"PYTHONPATH"}
    takes_option = command[0].startswith("-") and command[0] not in ("-m", "-c")
    return not takes_option and all(env[name] == os.environ.get(name) for name in settings)


class ForkServer:
    """The test process's end of the socket."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=root,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, command: Sequence[str], cwd: Path, env: dict[str, str], streams: Sequence[int]) -> int:
        """Run Python with these arguments in a session of its own and return the process's id.

        `streams`: the file descriptors of its standard input, output and errors.
        """
        return int(self._ask({"start": list(command), "cwd": str(cwd), "env": env}, list(streams)))

    def poll(self, pid: int) -> int | None:
        """Return a process's exit code, negative for a signal, or None while it runs."""
        code: int | None = self._ask({"poll": pid}, [])
        return code

    def close(self) -> None:
        """End the server; programs that it started go on."""
        self._socket.close()
        self._process.wait()

    def _ask(self, request: dict[str, Any], descriptors: list[int]) -> Any:
        socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], descriptors)
        return json.loads(self._socket.recv(100))


@functools.cache
def fork_server() -> ForkServer:
    """Return this process's server."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def serve(connection: socket.socket) -> None:
    """Answer requests until the other end of the socket is closed."""
    ended: dict[int, int] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
        if not data:
            return
        while not data.endswith(b"\n"):
            data += connection.recv(MAX_REQUEST_BYTES)
        request = json.loads(data)
        if "start" in request:
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                connection.close()
                os.setsid()
                os.close(writing)
                os.close(reading)
                run(request["start"], request["cwd"], request["env"], descriptors)
            os.close(writing)
            os.read(reading, 1)  # returns once the program has its own session, by which it can be killed
            for descriptor in (reading, *descriptors):
                os.close(descriptor)
            ended.pop(pid, None)  # of an earlier process with the same id
            answer: int | None = pid
        else:
            answer = poll(request["poll"], ended)
        connection.sendall(json.dumps(answer).encode())


def poll(pid: int, ended: dict[int, int]) -> int | None:
    if pid not in ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == 0:
            return None
        ended[pid] = os.waitstatus_to_exitcode(status)
    return ended[pid]


def run(command: list[str], cwd: str, env: dict[str, str], descriptors: list[int]) -> NoReturn:
    """Do what a new interpreter does with these arguments."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # The program may have a package of this name.
    sys.orig_argv = [sys.executable, *command]
    sys.path[1:1] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    kind, *arguments = command
    if kind == "-m":
        sys.path[0] = cwd
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        if kind == "-c":
            sys.path[0] = ""
            sys.argv = ["-c", *arguments[1:]]
            code = compile(arguments[0], "<string>", "exec")
        else:
            sys.path[0] = str(Path(kind).parent)
            sys.argv = command
            main.__file__ = kind
            code = compile(Path(kind).read_bytes(), kind, "exec")
        exec(code, main.__dict__)
    sys.exit()


if __name__ == "__main__":
    for name in PRELOADED:
        __import__(name)
    gc.freeze()  # A collection in a fork would otherwise copy the pages of all objects.
    serve(socket.socket(fileno=int(sys.argv[1])))
