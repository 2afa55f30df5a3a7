"""The process that executes tasks with `run_in="process"`, as a child of the worker.

Started as `python -m holdfast.engine.processes.child_main REQUESTS ANSWERS`, with the descriptors of two pipes.

It executes one attempt after the other in its main thread. It ignores Ctrl-C and SIGTERM, which reach whole process
groups; the worker kills it if necessary. If the worker dies, it exits at once. A copy of it that user code forks
never answers the worker: it exits when user code returns or raises.
"""

from __future__ import annotations

import logging
import os
import queue
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.function_lookup import find
from holdfast.engine.processes.framing import BEGUN, END, REQUEST, answer_tag, read_frame, write_frame
from holdfast.engine.processes.pool import MAX_REQUEST_BYTES, OUT_OF_MEMORY_EXIT_CODE, Answer
from holdfast.errors import PayloadError, TaskError
from holdfast.model.codec import allow_payload_bytes
from holdfast.model.retry import Retry
from holdfast.store import AttemptEnd, Claim
from holdfast.task.options import Declaration
from holdfast.task.scope import current_scope
from holdfast.task.signature import Signature
from holdfast.task.task import EnqueuerProtocol, Task
from holdfast.telemetry import Telemetry, log
from holdfast.telemetry.log_format import configure_console_log

UNLIMITED = resource.RLIM_INFINITY
SERVING_PID = os.getpid()
"""The id of the process that the worker started; forked copies have other ids."""


def main(requests_file: int, answers_file: int) -> None:
    _ignore_signals()
    _close_pipes_in_copies(requests_file, answers_file)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests_file, requests), daemon=True).start()
    while True:
        request = requests.get()
        write_frame(answers_file, BEGUN, b"", answer_tag(request["nonce"], os.getpid()))
        end = _run(request)
        if os.getpid() != SERVING_PID:  # forked outside the task, while its module was imported
            os._exit(1)
        answer = {name: getattr(end, name) for name in Answer.__struct_fields__}
        write_frame(answers_file, END, msgspec.json.encode(answer), answer_tag(request["nonce"], os.getpid()))
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a full disk, a closed pipe: not the task's fault
                stream.flush()


def _ignore_signals() -> None:
    """Do nothing on Ctrl-C and SIGTERM.

    Not with SIG_IGN, which programs that a task starts would inherit: they couldn't be terminated.
    """
    handled = (signal.SIGINT, signal.SIGTERM)

    def restore() -> None:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)

    for number in handled:
        signal.signal(number, lambda _number, _frame: None)
    os.register_at_fork(after_in_child=restore)


def _close_pipes_in_copies(*files: int) -> None:
    """Close the pipes to the parent in every process that user code forks."""

    def close() -> None:
        for file in files:
            with suppress(OSError):
                os.close(file)

    os.register_at_fork(after_in_child=close)


def _receive(file: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    while (frame := read_frame(file, REQUEST, MAX_REQUEST_BYTES)) is not None:
        requests.put(msgspec.json.decode(frame))
    os.killpg(0, signal.SIGKILL)  # the worker is gone: end this process and everything that it started


def _run(request: dict[str, Any]) -> AttemptEnd:
    """Execute one attempt. The process exits if it runs out of memory, because it can't recover from that."""
    _limit_memory(request["memory"])
    allow_payload_bytes(request["max_payload"])
    sys.argv = request["argv"]  # a script that is run again to find its task may read them
    try:
        return _attempt(request)
    except MemoryError:
        os._exit(OUT_OF_MEMORY_EXIT_CODE)
    finally:
        _limit_memory(None)


def _attempt(request: dict[str, Any]) -> AttemptEnd:
    claim = Claim(
        request["run"], 0, 0, 0, 0, 0, request["attempt"], request["failures"], None, request["args"], None,
        request["generation"],
    )  # fmt: skip
    declaration = Declaration(name=request["name"], retry=Retry.from_json(request["retry"]))
    try:
        around_calls = [find(module, "", name) for module, name in request["around_calls"]]
        for prepare in around_calls:
            prepare()  # before the import of the task's module, which may need it
        after_calls = around_calls + [find(module, "", name) for module, name in request["after_calls"]]
        function = find(request["module"], request["file"], request["qualname"])
        signature = Signature(function, request["name"])
    except Exception as error:
        plain = Attempt(claim, Task(declaration, Signature(main, ""), cast(EnqueuerProtocol, None)), "")
        return plain.failed(error)
    attempt = Attempt(claim, Task(declaration, signature, cast(EnqueuerProtocol, None), function), request["worker"])
    _set_up_telemetry(attempt, request)
    try:
        try:
            args, kwargs = signature.decode(request["args"])
        except (TaskError, PayloadError) as error:
            return attempt.invalid_arguments(error)
        current_scope.set(attempt.job_scope())
        return attempt.returned(_call(function, args, kwargs))
    except MemoryError:
        raise
    except BaseException as error:
        return attempt.failed(error)
    finally:
        _call_all(after_calls)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call user code. A copy of this process that user code forked exits here, as a script would."""
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
        with suppress(Exception):  # the next attempt calls it again, and fails if it raises
            function()


def _set_up_telemetry(attempt: Attempt, request: dict[str, Any]) -> None:
    """Set up logging and tracing as in the worker."""
    if request["log"] is not None and not logging.getLogger().handlers:
        configure_console_log(**request["log"])
    attempt.enter_context()
    if request["trace"] is not None:
        Telemetry("otel").tracing.attach_context(request["trace"])  # type: ignore[union-attr]


def _limit_memory(limit: int | None) -> None:
    if sys.platform == "darwin":  # which refuses or ignores such limits
        if limit is not None:
            log.memory_not_limited(limit)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = UNLIMITED if limit is None else limit
    if hard != UNLIMITED and (soft == UNLIMITED or soft > hard):
        soft = hard
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
