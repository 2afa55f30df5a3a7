"""What a driver's error means for the caller: try again, open a new connection, or give up."""

from __future__ import annotations

from holdfast.errors import StoreError, StoreUnavailable, TaskError


class Conflict(StoreUnavailable):
    """A serialization failure, a deadlock or a busy file: nothing was written, the same work may succeed now."""


class ConnectionLost(StoreUnavailable):
    """The connection broke. What was sent last may have been committed or not."""


class AccessDenied(StoreUnavailable):
    """The database answers and rejects this client: the URL, a password or a permission has to change first."""


class Expired(StoreUnavailable):
    """A transaction of the caller's kept the only writer for too long, and was rolled back."""


class DataFault(StoreError):
    """The database refused a value; trying the same again can't help."""


class Duplicate(DataFault):
    """The value is there already: someone else was first, which a new look would show."""


def unwrap_driver_error(error: BaseException) -> BaseException:
    """What the driver raised, where a library such as SQLAlchemy has wrapped it."""
    wrapped = getattr(error, "orig", None)
    if not isinstance(wrapped, BaseException):
        return error
    return wrapped.__cause__ or wrapped


def transaction_ended(what: str) -> TaskError:
    """A caller's own statement has ended the transaction that it was lent."""
    return TaskError(
        f"the transaction on {what} was ended by one of its own statements: leave out commit and rollback, Holdfast"
        " commits when your code is through and rolls back when it raises. For a part that may fail use a savepoint"
    )
