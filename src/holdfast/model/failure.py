"""Convert exceptions to `ErrorInfo` and to JSON text. Nothing here raises: every failure can be recorded.

`policy/retry_decision.py` decides which failures are retried.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from holdfast.errors import ConfigError, ErrorInfo, Fatal, PayloadError, RunFailed, StepFailed
from holdfast.model.codec import display_value, encode
from holdfast.model.names import type_name

MAX_MESSAGE_BYTES = 4 * 1024
MAX_TRACEBACK_BYTES = 16 * 1024
MAX_DATA_BYTES = 8 * 1024
MAX_NOTE_BYTES = 300

_MAX_TYPE_CHARS = 200
_PACKAGE = Path(__file__).resolve().parents[1]
_OWN_PATHS = tuple(f"{_PACKAGE / part}{os.sep}" for part in ("engine", "task"))


def describe_exception(exception: BaseException, code: str = "error") -> ErrorInfo:
    """Describe an exception. Messages are truncated at the end, tracebacks at the start."""
    data, note = _data(exception)
    return ErrorInfo(code, _type_name(exception), _message(exception, note), _traceback(exception), data)


def error_to_json(info: ErrorInfo, retry_in: int | None = None) -> str:
    """Return the JSON text that is stored with a run. `retry_in`: microseconds until the next attempt."""
    parts: dict[str, Any] = {
        "code": _clean(info.code),
        "type": _clean(info.type),
        "message": truncate_end(info.message, MAX_MESSAGE_BYTES),
        "traceback": None if info.traceback is None else truncate_start(info.traceback, MAX_TRACEBACK_BYTES),
    }
    if info.data is not None:
        parts["data"] = info.data
    if retry_in is not None:
        parts["retry_in"] = retry_in
    return msgspec.json.encode(parts).decode()


def cancellation_json(reason: str | None, by: str | None = None) -> str:
    """Return the JSON text that is stored with a cancelled run."""
    if reason is not None and not isinstance(reason, str):
        raise ConfigError(f"reason must be a str, not {type(reason).__name__}")
    text = error_to_json(ErrorInfo("cancelled", "RunCancelled", reason or ""))
    return text if by is None else msgspec.json.encode({**msgspec.json.decode(text), "by": _clean(by)}).decode()


def error_from_json(text: str) -> ErrorInfo:
    """Parse a stored error. Malformed text becomes the message of an unknown error."""
    try:
        parts: Any = msgspec.json.decode(text)
        stored = parts.get("traceback")
        return ErrorInfo(
            str(parts.get("code", "error")),
            str(parts.get("type", "unknown")),
            str(parts.get("message", "")),
            None if stored is None else str(stored),
            parts.get("data"),
        )
    except Exception:
        return ErrorInfo("error", "unknown", truncate_end(str(text), MAX_MESSAGE_BYTES))


def is_error_json(text: str) -> bool:
    """Return whether a text is an error as `error_to_json` writes it."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False


def truncate_end(text: str, limit: int) -> str:
    """Return the start of a text, cleaned, in at most `limit` bytes of UTF-8."""
    if len(text) <= limit and len((clean := _clean(text)).encode()) <= limit:
        return clean
    note = f"… (truncated; {len(text):,} characters in total)"
    room = limit - len(note.encode())
    return _clean(text[:room]).encode()[:room].decode(errors="ignore") + note  # cut first: text may be huge


def truncate_start(text: str, limit: int) -> str:
    """Return the end of a text, cleaned, in at most `limit` bytes of UTF-8."""
    text = _clean(text)
    if len(text) <= limit and len(text.encode()) <= limit:
        return text
    note = f"(truncated; {len(text):,} characters in total) …\n"
    room = limit - len(note.encode())
    return note + text[-room:].encode()[-room:].decode(errors="ignore")


def _clean(text: str) -> str:
    """Escape lone surrogates and NULs, which databases and terminals reject."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _type_name(exception: BaseException) -> str:
    try:
        return _clean(type_name(type(exception)))[:_MAX_TYPE_CHARS]
    except BaseException:
        return "unknown"


def _data(exception: BaseException) -> tuple[Any, str]:
    """Return the data of an exception as plain JSON values with secrets masked, or a note about why it is left out."""
    try:
        data = _attached_data(exception)
        if data is None:
            return None, ""
        text = encode(data, "the data")
        if (size := len(text.encode())) > MAX_DATA_BYTES:
            return None, f" (its data was left out: it has {size:,} bytes, and {MAX_DATA_BYTES:,} are allowed)"
        if "\\u0000" in text:  # PostgreSQL can't search an error with it
            return None, " (its data was left out: it has a NUL character)"
        return display_value(text), ""
    except PayloadError as error:
        return None, f" (its data was left out: {truncate_end(str(error), MAX_NOTE_BYTES)})"
    except BaseException as error:
        return None, f" (its data was left out: reading it raised {type(error).__name__})"


def _attached_data(exception: BaseException) -> Any:
    """Return the data of `Fatal`, also if a step or a child raised it, or the first data in a group."""
    if isinstance(exception, Fatal):
        return getattr(exception, "data", None)  # a subclass may not call our constructor
    if isinstance(exception, StepFailed | RunFailed):
        return exception.error.data
    if isinstance(exception, BaseExceptionGroup):
        found = (_attached_data(member) for member in exception.exceptions)
        return next((data for data in found if data is not None), None)
    return None


def _message(exception: BaseException, note: str) -> str:
    try:
        return truncate_end(str(exception), MAX_MESSAGE_BYTES - len(note.encode())) + note
    except BaseException as error:
        return f"(no message: __str__ raised {type(error).__name__})"


def _user_part(exception: BaseException) -> TracebackType | None:
    """Return the traceback from the first frame of user code, without the engine's frames above it."""
    part = exception.__traceback__
    while part is not None and part.tb_frame.f_globals.get("__name__", "").startswith("holdfast.engine."):
        part = part.tb_next
    return part or exception.__traceback__


def _remove_own_frames(summary: traceback.TracebackException | None) -> None:
    """Remove Holdfast's frames between those of user code, where a step was called."""
    while summary is not None:
        frames = [frame for frame in summary.stack if not frame.filename.startswith(_OWN_PATHS)]
        if frames:
            summary.stack = traceback.StackSummary.from_list(frames)
        summary = summary.__cause__ or (None if summary.__suppress_context__ else summary.__context__)


def _traceback(exception: BaseException) -> str | None:
    try:
        summary = traceback.TracebackException(type(exception), exception, _user_part(exception), compact=True)
        _remove_own_frames(summary)
        chunks = summary.format()

        text = "".join(
            chunk if len(chunk) <= MAX_MESSAGE_BYTES else truncate_end(chunk, MAX_MESSAGE_BYTES) + "\n"
            for chunk in chunks
        )
        return truncate_start(text, MAX_TRACEBACK_BYTES)
    except BaseException:
        return None
