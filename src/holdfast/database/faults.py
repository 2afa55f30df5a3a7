"""Driver errors by what the caller can do: retry, reconnect or give up."""

from __future__ import annotations

from holdfast.errors import StoreError, StoreUnavailable, TaskError


class Conflict(StoreUnavailable):
    """A serialization failure, a deadlock or a busy file. Nothing was written; a retry may succeed."""


class ConnectionLost(StoreUnavailable):
    """The connection broke. The last statement may or may not have been committed."""


class AccessDenied(StoreUnavailable):
    """The database rejects this client until the URL, a password or a permission changes."""


class Expired(StoreUnavailable):
    """A user's transaction held the only writer for too long and was rolled back."""


class DataFault(StoreError):
    """The database rejected a value. A retry can't succeed."""


class ExpectationFailed(DataFault):
    """A statement found that a transaction expects what isn't so. Nothing was written."""


class Duplicate(DataFault):
    """A unique key exists already: another process inserted it first."""


UNEXPECTED = "holdfast: a claimed run has changed, so its worker repeats the transaction"
"""What the server's log says when an expectation fails."""
MOVED_SQLSTATE = "HF001"
"""The SQLSTATE with which a fence refuses a write on PostgreSQL."""
MOVED_PREFIX = "holdfast: "
"""How the message begins with which a fence refuses a write on SQLite."""
TENANT_MOVED_SQLSTATE = "HF002"
"""The SQLSTATE with which the fence around a tenant refuses a row on PostgreSQL."""
TENANT_MOVED_PREFIX = "holdfast, tenant: "
"""How the message begins with which the fence around a tenant refuses a row on SQLite."""


def unwrap_driver_error(error: BaseException) -> BaseException:
    """Return the driver's exception from one that SQLAlchemy or Django wrapped around it."""
    if type(error).__module__ == "django.db.utils":
        return error.__cause__ or error
    wrapped = getattr(error, "orig", None)
    if not isinstance(wrapped, BaseException):
        return error
    return wrapped.__cause__ or wrapped


def transaction_ended(what: str) -> TaskError:
    """Return the error for user SQL that ended a transaction that belongs to Holdfast."""
    return TaskError(
        f"a statement of your code ended the transaction on {what}: don't commit or roll back. Holdfast commits when"
        " the block ends and rolls back when it raises; use a savepoint for a part that may fail"
    )
