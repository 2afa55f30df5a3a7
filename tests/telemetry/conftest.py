"""Fixtures for telemetry tests: apps with all backends, recorded spans, a collector for processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Holdfast
from tests.engine.conftest import SettableClock, clock, make_app  # noqa: F401
from tests.support.collector import Collector
from tests.support.spans import Spans


@cache
def exporter() -> InMemorySpanExporter:
    """A process can set its provider only once."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    return kept


@pytest.fixture
def spans() -> Iterator[Spans]:
    """The spans of this process during the test."""
    exporter().clear()
    yield Spans(exporter())
    exporter().clear()


@pytest.fixture
def app(make_app: Callable[..., Holdfast], spans: Spans) -> Holdfast:  # noqa: F811
    return make_app(telemetry="otel")


@pytest.fixture
def timed_app(make_app: Callable[..., Holdfast], spans: Spans, clock: SettableClock) -> Holdfast:  # noqa: F811
    return make_app(telemetry="otel", clock=clock)


@pytest.fixture
def collector() -> Iterator[Collector]:
    listening = Collector()
    yield listening
    listening.close()
