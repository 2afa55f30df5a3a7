"""Answers of the store that get lost behind what was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import StoreUnavailable


class FirstAnswerLost:
    """A call whose first answer doesn't arrive. `answers` are those that there were, with the lost one."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.answers: list[Any] = []

    def __call__(self, *given: Any) -> Any:
        self.answers.append(self._call(*given))
        if len(self.answers) == 1:
            raise StoreUnavailable("the answer was lost")
        return self.answers[-1]
