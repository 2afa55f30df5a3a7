"""Replies of the store that get lost after the commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import StoreUnavailable


class FirstReplyLost:
    """A call whose first reply is lost. `replies` contains all replies, including the lost one."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.replies: list[Any] = []

    def __call__(self, *given: Any) -> Any:
        self.replies.append(self._call(*given))
        if len(self.replies) == 1:
            raise StoreUnavailable("the reply was lost")
        return self.replies[-1]
