"""The child's side of a task with `run_in="process"`.

Started as `python -m holdfast.engine.processes.child_main REQUESTS ANSWERS`.

It runs one attempt after the other in its main thread. Signals are its parent's business: Ctrl-C and SIGTERM, which
reach whole groups of processes, are ignored here. When the parent is gone, it ends at once, whatever it does. A
copy of it that author code forks never answers the parent: it exits when author code returns or raises.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import resource
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn, cast

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.processes.framing import answer_mark, read_frame, write_frame
from holdfast.engine.processes.pool import OUT_OF_MEMORY
from holdfast.errors import PayloadError, TaskError
from holdfast.model.retry import Retry
from holdfast.store import Claim, End
from holdfast.task.options import Declaration
from holdfast.task.signature import Signature
from holdfast.task.task import Enqueuer, Task
from holdfast.telemetry import Telemetry
from holdfast.telemetry.log_format import configure_console_log

UNLIMITED = resource.RLIM_INFINITY
SERVING_PID = os.getpid()
"""The process that the parent started: its forked copies have other ids."""


def main(requests_file: int, answers_file: int) -> None:
    _leave_signals_to_the_parent()
    _keep_pipes_from_copies(requests_file, answers_file)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests_file, requests), daemon=True).start()
    while True:
        request = requests.get()
        write_frame(answers_file, b"begun", answer_mark(request["nonce"], os.getpid()))
        end = _run(request)
        if os.getpid() != SERVING_PID:  # forked outside the task, while its module was imported
            os._exit(1)
        answer = {name: getattr(end, name) for name in ("kind", "state", "result", "error", "delay", "failed")}
        write_frame(answers_file, msgspec.json.encode(answer), answer_mark(request["nonce"], os.getpid()))
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a full disk, a closed pipe: not the task's fault
                stream.flush()


def _leave_signals_to_the_parent() -> None:
    """Do nothing on Ctrl-C and SIGTERM. Handlers, because what is ignored stays ignored in programs that a task starts,
    which then couldn't be terminated."""
    ours = (signal.SIGINT, signal.SIGTERM)

    def restore() -> None:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)

    for number in ours:
        signal.signal(number, lambda _number, _frame: None)
    os.register_at_fork(after_in_child=restore)


def _keep_pipes_from_copies(*files: int) -> None:
    """Close the pipes to the parent in every process that author code forks."""

    def close() -> None:
        for file in files:
            with suppress(OSError):
                os.close(file)

    os.register_at_fork(after_in_child=close)


def _receive(file: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    while (frame := read_frame(file)) is not None:
        requests.put(msgspec.json.decode(frame))
    os.killpg(0, signal.SIGKILL)  # the parent is gone: so are we, and what we started


def _run(request: dict[str, Any]) -> End:
    """One attempt, in the words of the engine. Running out of memory can't be survived: the process ends."""
    _limit_memory(request["memory"])
    sys.argv = request["argv"]  # a script that is run again to find its task looks at them
    try:
        return _attempt(request)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    finally:
        _limit_memory(None)


def _attempt(request: dict[str, Any]) -> End:
    claim = Claim(request["run"], 0, 0, 0, 0, 0, request["attempt"], request["failures"], None, request["args"], None)
    declaration = Declaration(name=request["name"], retry=Retry.from_json(request["retry"]))
    try:
        between = [find(module, "", name) for module, name in request["between"]]
        for prepare in between:
            prepare()  # before the task's module is imported, which may need it
        function = find(request["module"], request["file"], request["qualname"])
        signature = Signature(function, request["name"])
    except Exception as error:
        plain = Attempt(claim, Task(declaration, Signature(main, ""), cast(Enqueuer, None)), "")
        return plain.failed(error)
    attempt = Attempt(claim, Task(declaration, signature, cast(Enqueuer, None), function), request["worker"])
    _tell_of(attempt, request)
    try:
        try:
            args, kwargs = signature.decode(request["args"])
        except (TaskError, PayloadError) as error:
            return attempt.misfit(error)
        return attempt.returned(_call(function, args, kwargs))
    except MemoryError:
        raise
    except BaseException as error:
        return attempt.failed(error)
    finally:
        _call_all(between)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call author code. A copy of this process that author code forked exits here, as a script would."""
    try:
        value = function(*args, **kwargs)
    except BaseException as error:
        if os.getpid() != SERVING_PID:
            _exit_copy(error)
        raise
    if os.getpid() != SERVING_PID:
        _exit_copy(None)
    return value


def _exit_copy(error: BaseException | None) -> NoReturn:
    """Exit a forked process, with the exit code that Python uses after this exception."""
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def _call_all(functions: Sequence[Callable[[], Any]]) -> None:
    for function in functions:
        with suppress(Exception):  # the next attempt calls it first, and fails if it must
            function()


def _tell_of(attempt: Attempt, request: dict[str, Any]) -> None:
    """What author code logs and traces here is shown as the worker's is."""
    if request["log"] is not None and not logging.getLogger().handlers:
        configure_console_log(**request["log"])
    attempt.enter()
    if request["trace"] is not None:
        Telemetry("otel").tracing.attach_context(request["trace"])  # type: ignore[union-attr]


def _limit_memory(limit: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = UNLIMITED if limit is None else limit
    if hard != UNLIMITED and (soft == UNLIMITED or soft > hard):
        soft = hard
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def find(module: str, file: str, qualname: str) -> Callable[..., Any]:
    """The function of a task. A script is run under another name, as its `if __name__ == "__main__"` expects."""
    place: Any = _script(file) if module == "__main__" else importlib.import_module(module)
    for part in qualname.split("."):
        place = place[part] if isinstance(place, dict) else getattr(place, part)
    function = place.fn if isinstance(place, Task) else place
    return cast("Callable[..., Any]", function)


@cache
def _script(file: str) -> dict[str, Any]:
    return runpy.run_path(file, run_name="__holdfast_script__")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
