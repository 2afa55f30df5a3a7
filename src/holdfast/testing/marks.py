"""`@crash_at_every_step`: marks a test that the plugin runs again and again, with another crash each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

T = TypeVar("T", bound=Callable[..., Any])

MARK = "crash_at_every_step"


@overload
def crash_at_every_step(test: T, /) -> T: ...
@overload
def crash_at_every_step(*, unrecorded: bool = True) -> Callable[[T], T]: ...
def crash_at_every_step(test: Any = None, /, *, unrecorded: bool = True) -> Any:
    """Run a test once as it is, and then once for each place where a worker wrote something in it, with the worker
    crashing right after that; and where that was the record of something that author code had done, like a step, once
    more, with a crash right before: done, but not on record. `unrecorded=False` leaves those out.

    The test must use the fixture `kit`, or a `Kit` of its own. Its fixtures are set up anew each time.
    """
    import pytest

    mark = getattr(pytest.mark, MARK)(unrecorded=unrecorded)
    return mark if test is None else mark(test)
