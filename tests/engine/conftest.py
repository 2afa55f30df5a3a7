"""Fixtures for tests of the worker inside the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.support.ledger import Ledger


class SettableClock:
    """A manual clock for statements, in microseconds since 1970."""

    def __init__(self) -> None:
        self.micros = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.micros

    def forward(self, seconds: float) -> None:
        self.micros += int(seconds * 1_000_000)


@pytest.fixture
def make_app(database_url: str) -> Iterator[Callable[..., Holdfast]]:
    """Create apps on the test's database; they are closed at the end of the test."""
    made: list[Holdfast] = []

    def make(**settings: object) -> Holdfast:
        made.append(Holdfast(database_url, **settings))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., Holdfast]) -> Holdfast:
    return make_app()


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def timed_app(make_app: Callable[..., Holdfast], clock: SettableClock) -> Holdfast:
    """Return an app whose statements use the test's clock."""
    return make_app(clock=clock)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")
