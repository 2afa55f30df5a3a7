"""Exceptions to `ErrorInfo` and to JSON text, whatever is in them. Nothing here raises: every failure can be recorded.

Which failures are tried again is decided in `policy/outcome.py`.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from holdfast.errors import ConfigError, ErrorInfo
from holdfast.model.names import type_name

MAX_MESSAGE_BYTES = 4 * 1024  # bytes
MAX_TRACEBACK_BYTES = 16 * 1024

_LONGEST_TYPE = 200
_PACKAGE = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{_PACKAGE / part}{os.sep}" for part in ("engine", "task"))


def describe_exception(exception: BaseException, code: str = "error") -> ErrorInfo:
    """What is kept of an exception. Messages are cut at their end, tracebacks at their beginning."""
    return ErrorInfo(code, _type_name(exception), _message(exception), _traceback(exception))


def error_to_json(info: ErrorInfo) -> str:
    """The text that is kept with a run."""
    parts = {
        "code": _clean(info.code),
        "type": _clean(info.type),
        "message": truncate_end(info.message, MAX_MESSAGE_BYTES),
        "traceback": None if info.traceback is None else truncate_start(info.traceback, MAX_TRACEBACK_BYTES),
    }
    return msgspec.json.encode(parts).decode()


def cancellation_json(reason: str | None, by: str | None = None) -> str:
    """The text that is kept with a cancelled run, with who did it where that is known."""
    if reason is not None and not isinstance(reason, str):
        raise ConfigError(f"reason must be text, not {type(reason).__name__}")
    text = error_to_json(ErrorInfo("cancelled", "RunCancelled", reason or ""))
    return text if by is None else msgspec.json.encode({**msgspec.json.decode(text), "by": _clean(by)}).decode()


def error_from_json(text: str) -> ErrorInfo:
    """The error of a kept text. A text that isn't one becomes the message of an unknown error."""
    try:
        parts: Any = msgspec.json.decode(text)
        kept = parts.get("traceback")
        return ErrorInfo(
            str(parts.get("code", "error")),
            str(parts.get("type", "unknown")),
            str(parts.get("message", "")),
            None if kept is None else str(kept),
        )
    except Exception:
        return ErrorInfo("error", "unknown", truncate_end(str(text), MAX_MESSAGE_BYTES))


def truncate_end(text: str, limit: int) -> str:
    """The beginning of a text, cleaned, in at most `limit` bytes of UTF-8."""
    if len(text) <= limit and len((clean := _clean(text)).encode()) <= limit:
        return clean
    note = f"… (cut; {len(text):,} characters in all)"
    room = limit - len(note.encode())
    return _clean(text[:room]).encode()[:room].decode(errors="ignore") + note  # a text may have hundreds of megabytes


def truncate_start(text: str, limit: int) -> str:
    """The end of a text, cleaned, in at most `limit` bytes of UTF-8."""
    text = _clean(text)
    if len(text) <= limit and len(text.encode()) <= limit:
        return text
    note = f"(cut; {len(text):,} characters in all) …\n"
    room = limit - len(note.encode())
    return note + text[-room:].encode()[-room:].decode(errors="ignore")


def _clean(text: str) -> str:
    """A text that every database and terminal takes: lone surrogates and NULs are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _type_name(exception: BaseException) -> str:
    try:
        return _clean(type_name(type(exception)))[:_LONGEST_TYPE]
    except BaseException:
        return "unknown"


def _message(exception: BaseException) -> str:
    try:
        return truncate_end(str(exception), MAX_MESSAGE_BYTES)
    except BaseException as error:
        return f"(the message can't be read: its __str__ raised {type(error).__name__})"


def _authors_part(exception: BaseException) -> TracebackType | None:
    """The traceback from where the author's code begins: that our engine called it tells nobody anything."""
    part = exception.__traceback__
    while part is not None and part.tb_frame.f_globals.get("__name__", "").startswith("holdfast.engine."):
        part = part.tb_next
    return part or exception.__traceback__


def _leave_out_ours(told: traceback.TracebackException | None) -> None:
    """Between the author's frames stand ours, where a step was called: they tell nobody anything either."""
    while told is not None:
        theirs = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
        if theirs:
            told.stack = traceback.StackSummary.from_list(theirs)
        told = told.__cause__ or (None if told.__suppress_context__ else told.__context__)


def _traceback(exception: BaseException) -> str | None:
    try:
        told = traceback.TracebackException(type(exception), exception, _authors_part(exception), compact=True)
        _leave_out_ours(told)
        chunks = told.format()
        text = "".join(
            chunk if len(chunk) <= MAX_MESSAGE_BYTES else truncate_end(chunk, MAX_MESSAGE_BYTES) + "\n"
            for chunk in chunks
        )
        return truncate_start(text, MAX_TRACEBACK_BYTES)
    except BaseException:
        return None
