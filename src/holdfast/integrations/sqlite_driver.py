"""A PEP 249 database driver around Holdfast's SQLite transaction, for libraries that need one.

It raises the errors of Python's `sqlite3`, so that existing code keeps working. Nothing else of that module is used:
two SQLite libraries that open one file in one process break file locking.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw

from holdfast.database.base import Row
from holdfast.database.sqlite import SqliteTransaction
from holdfast.errors import TaskError

# Module attributes required by PEP 249
apilevel = "2.0"
paramstyle = "qmark"
threadsafety = 1
sqlite_version = apsw.sqlitelibversion()
sqlite_version_info = tuple(int(part) for part in sqlite_version.split("."))
Error = sqlite3.Error
InterfaceError = sqlite3.InterfaceError
DatabaseError = sqlite3.DatabaseError
DataError = sqlite3.DataError
OperationalError = sqlite3.OperationalError
IntegrityError = sqlite3.IntegrityError
InternalError = sqlite3.InternalError
ProgrammingError = sqlite3.ProgrammingError
NotSupportedError = sqlite3.NotSupportedError
Binary = memoryview

_ERROR_CLASSES: tuple[tuple[tuple[type[Exception], ...], type[Exception]], ...] = (
    ((apsw.ConstraintError, apsw.MismatchError), IntegrityError),
    ((apsw.BindingsError, apsw.RangeError, apsw.MisuseError, TypeError), ProgrammingError),
    ((apsw.TooBigError,), DataError),
    ((apsw.CorruptError, apsw.NotADBError), DatabaseError),
)


def _translated(error: Exception) -> Exception:
    kind = next((kind for sources, kind in _ERROR_CLASSES if isinstance(error, sources)), OperationalError)
    translated = kind(str(error).removeprefix(f"{type(error).__name__}: "))
    if isinstance(error, apsw.Error) and hasattr(error, "extendedresult"):
        translated.sqlite_errorcode = error.extendedresult  # type: ignore[attr-defined]
        translated.sqlite_errorname = apsw.mapping_extended_result_codes.get(error.extendedresult)  # type: ignore[attr-defined]
    return translated


class DriverConnection:
    """A transaction that only Holdfast commits or rolls back."""

    isolation_level = ""

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._transaction = transaction
        self.rolled_back = False
        """Whether the library asked for a rollback. Then nothing may be committed."""

    def cursor(self) -> DriverCursor:
        return DriverCursor(self._transaction)

    def commit(self) -> None:
        raise TaskError("remove commit(): ctx.transaction commits together with the checkpoint")

    def rollback(self) -> None:
        self.rolled_back = True

    def close(self) -> None:
        """Do nothing: the connection belongs to Holdfast."""


class DriverCursor:
    """Executes statements and fetches all rows at once, so that nothing stays open on the connection."""

    arraysize = 1

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._transaction = transaction
        self._rows: Iterator[Row] = iter(())
        self.description: Sequence[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    def execute(self, sql: str, values: Any = ()) -> DriverCursor:
        try:
            ran = self._transaction.describe(sql, values)
        except (apsw.Error, TypeError) as error:
            raise _translated(error) from error
        self._rows = iter(ran.rows)
        self.description = [(name, *[None] * 6) for name in ran.columns] or None
        self.rowcount = ran.changed
        self.lastrowid = ran.last_id
        return self

    def executemany(self, sql: str, rows: Iterable[Any]) -> DriverCursor:
        changed = 0
        for values in rows:
            changed += self.execute(sql, values).rowcount
        self.description, self.rowcount = None, changed
        return self

    def fetchone(self) -> Row | None:
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        return [row for _, row in zip(range(size or self.arraysize), self._rows, strict=False)]

    def fetchall(self) -> list[Row]:
        return list(self._rows)

    def close(self) -> None:
        self._rows = iter(())

    def setinputsizes(self, sizes: Any) -> None:
        """Do nothing."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing."""
