"""Requests made up from the OpenAPI document, right ones and wrong ones: nothing breaks, and answers are as it says."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python.asgi import get_client
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.web.api import interaction
from holdfast.web.site import STREAMS
from tests.support.web import HOST

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STREAM_PATHS = {stream.path for stream in STREAMS}
NAMES = {"gate": "approve", "queue": "default", "schedule": "nightly"}


@pytest.fixture(autouse=True)
def waits_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for an answer to an ask reads the clock; each reading is an hour later."""
    monkeypatch.setattr(interaction, "time", SimpleNamespace(monotonic=count(step=3600.0).__next__))


def fuzz(shop: Any, runs: dict[str, Any], examples: int) -> int:
    """Call every operation of the document, and return the number of requests."""
    ids = [str(run.id) for run in runs.values()]
    token = shop.control.tokens.create("operate").token
    asked = 0
    with get_client(shop.site()) as client:
        client.headers.update({"host": HOST, "authorization": f"Bearer {token}"})
        document = client.get(f"http://{HOST}/api/v1/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)

        def ask(case: Any, known: bool, id: str) -> None:
            nonlocal asked
            if known:  # what there is, lest all be not found
                case.path_parameters.update({n: v for n, v in {**NAMES, "id": id}.items() if n in case.path_parameters})
            response = case.call(base_url=f"http://{HOST}/api/v1", session=client)
            case.validate_response(response, checks=CHECKS)
            asked += 1

        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.path in STREAM_PATHS:  # responses without an end
                continue
            for mode in GenerationMode:
                cases = operation.as_strategy(generation_mode=mode)
                test = given(case=cases, known=st.booleans(), id=st.sampled_from(ids))(ask)
                settings(
                    max_examples=examples, derandomize=True, database=None, deadline=None,
                    suppress_health_check=list(HealthCheck),
                )(test)()  # fmt: skip
    return asked


def test_generated_requests_match_the_document(shop, fill):
    assert fuzz(shop, fill(), 6) > 150


@pytest.mark.slow
def test_many_generated_requests_match_the_document(shop, fill):
    assert fuzz(shop, fill(), 150) > 3_000
