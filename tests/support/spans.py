"""Helpers for tests of spans."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """The spans that an exporter has received."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def clear(self) -> None:
        self._exporter.clear()

    def one(self, name: str) -> Any:
        (span,) = self.named(name)
        return span

    def names(self) -> set[str]:
        return {span.name for span in self._exporter.get_finished_spans()}


def child_of(span: Any, parent: Any) -> bool:
    same = span.context.trace_id == parent.context.trace_id
    return same and span.parent is not None and span.parent.span_id == parent.context.span_id


def links_to(span: Any, other: Any) -> bool:
    place = other.context.trace_id, other.context.span_id
    return place in [(link.context.trace_id, link.context.span_id) for link in span.links]
