"""A control on an empty database with the test's own clock, once per database."""

from __future__ import annotations

import pytest

from holdfast.control import Control
from tests.support.store_harness import StoreHarness


@pytest.fixture
def control(harness: StoreHarness) -> Control:
    return Control(harness.store)


@pytest.fixture
def urls(request, tmp_path):
    """The URLs of two empty databases of these kinds."""

    def url(kind, name):
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        factory = request.getfixturevalue("databases")
        return factory.create_empty()

    source, target = request.param.split(" to ")
    return url(source, "source"), url(target, "target")
