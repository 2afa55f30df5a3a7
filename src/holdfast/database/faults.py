"""What a driver's error means for the caller: try again, open a new connection, or give up."""

from __future__ import annotations

from holdfast.errors import StoreError, StoreUnavailable


class Conflict(StoreUnavailable):
    """A serialization failure, a deadlock or a busy file: nothing was written, the same work may succeed now."""


class ConnectionLost(StoreUnavailable):
    """The connection broke. What was sent last may have been committed or not."""


class Expired(StoreUnavailable):
    """A transaction of the caller's kept the only writer for too long, and was rolled back."""


class DataFault(StoreError):
    """The database refused a value; trying the same again can't help."""


class Duplicate(DataFault):
    """The value is there already: someone else was first, which a new look would show."""


def driver_error(error: BaseException) -> BaseException:
    """What the driver raised, where a library such as SQLAlchemy has wrapped it."""
    wrapped = getattr(error, "orig", None)
    if not isinstance(wrapped, BaseException):
        return error
    return wrapped.__cause__ or wrapped
