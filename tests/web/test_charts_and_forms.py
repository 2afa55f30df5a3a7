"""Timelines, graph layouts and schema forms as computed for the pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import uuid4

import msgspec
import pytest

from holdfast.control.graphs import GraphInfo, NodeInfo
from holdfast.control.runs import RunDetails
from holdfast.errors import BadArguments
from holdfast.model.history import Entry
from holdfast.model.run import RunInfo
from holdfast.web.pages.formats import ago, duration
from holdfast.web.pages.forms import form_fields, form_value
from holdfast.web.pages.graph_layout import MAX_BOXES, layout_graph
from holdfast.web.pages.timeline import build_timeline

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def run_with(*history: tuple[str, float, int]) -> RunDetails:
    info = RunInfo(
        id=uuid4(), task="t", queue="q", priority=0, state="running", attempt=1, crashes=0, created_at=NOON
    )  # fmt: skip
    entries = [Entry(kind, at(seconds), attempt) for kind, seconds, attempt in history]
    return RunDetails(info, None, {}, None, None, None, None, None, entries)


def test_a_timeline_has_a_line_per_attempt_with_its_waits_and_its_end():
    history = (
        ("enqueued", 0, 0), ("started", 1, 1), ("waiting", 2, 1), ("resumed", 5, 1), ("retrying", 6, 1),
        ("started", 7, 2), ("done", 10, 2),
    )  # fmt: skip
    timeline = build_timeline(run_with(*history), at(10))
    assert timeline is not None
    told = [(row.label, [(bar.kind, bar.left, bar.width) for bar in row.bars]) for row in timeline.rows]
    assert told == [
        ("attempt 1", [("running", 100, 100), ("waiting", 200, 300), ("failed", 500, 100)]),
        ("attempt 2", [("done", 700, 300)]),
    ]


def test_an_attempt_under_way_goes_on_until_now_and_nothing_begun_has_no_timeline():
    timeline = build_timeline(run_with(("enqueued", 0, 0), ("started", 5, 1)), at(10))
    assert timeline is not None
    assert [(bar.kind, bar.left, bar.width) for bar in timeline.rows[0].bars] == [("running", 500, 500)]
    assert build_timeline(run_with(("enqueued", 0, 0)), at(10)) is None


def node(name: str, layer: int, needs: tuple[str, ...] = (), state: str = "done", task: str = "t") -> NodeInfo:
    return NodeInfo(
        name, uuid4(), "task", task, state, layer, dict.fromkeys(needs, "done"), [], None, None, 1, None, None, None,
        None,
    )  # type: ignore[arg-type]  # fmt: skip


def test_layout_has_layers_from_left_to_right_and_an_arrow_per_dependency():
    picture = layout_graph(GraphInfo(uuid4(), {}, [node("a", 1), node("b", 2, ("a",)), node("c", 2, ("a",))]))
    places = {box.label: (box.x, box.y) for box in picture.boxes}
    assert places["a"][0] < places["b"][0] == places["c"][0]
    assert places["b"][1] != places["c"][1]
    assert len(picture.arrows) == 2


def test_many_nodes_that_are_alike_are_one_box_that_shows_the_worst():
    fan = [node(f"n{n}", 2, ("a",), "failed" if n == 3 else "done") for n in range(1000)]
    picture = layout_graph(GraphInfo(uuid4(), {}, [node("a", 1), *fan, node("z", 3, tuple(each.name for each in fan))]))
    assert [box.label for box in picture.boxes] == ["a", "1,000 × t", "z"]
    assert picture.boxes[1].state == "failed"
    assert len(picture.arrows) == 2


def test_large_layout_is_truncated_and_says_so():
    picture = layout_graph(GraphInfo(uuid4(), {}, [node(f"n{n}", 1, task=f"t{n}") for n in range(MAX_BOXES + 7)]))
    assert (len(picture.boxes), picture.omitted) == (MAX_BOXES, 7)


@dataclass
class Answer:
    """What a gate may ask for."""

    ok: bool
    amount: int
    size: Literal["small", "large"]
    note: str = ""
    share: float | None = None
    more: list[int] | None = None


def test_form_has_a_field_per_property_and_rebuilds_the_value():
    schema = msgspec.json.schema(Answer)
    assert [(field.name, field.kind, field.required) for field in form_fields(schema)] == [
        ("ok", "boolean", True), ("amount", "integer", True), ("size", "choice", True), ("note", "long", False),
        ("share", "number", False), ("more", "json", False),
    ]  # fmt: skip
    typed = {"ok": "true", "amount": "5", "size": '"small"', "note": "", "share": "0.5", "more": "[1, 2]"}
    form = {f"field:{name}": text for name, text in typed.items()}
    given = {"ok": True, "amount": 5, "size": "small", "share": 0.5, "more": [1, 2]}
    assert form_value(schema, form) == given
    assert msgspec.convert(form_value(schema, form), Answer) == Answer(**given)
    with pytest.raises(BadArguments, match="Amount must be a whole number"):
        form_value(schema, form | {"field:amount": "many"})


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(bool, "true", True), (int, "5", 5), (str, "5", "5"), (list[int], "[1]", [1]), (int | None, "", None)],
)
def test_a_type_that_is_no_object_is_one_field(kind, text, value):
    assert form_value(msgspec.json.schema(kind), {"field:output": text}) == value


def test_a_gate_without_a_type_takes_any_json_or_nothing():
    assert [form_value(None, {"field:output": text}) for text in ("", '{"a": 1}')] == [None, {"a": 1}]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.004, "4 ms"), (1.25, "1.2 s"), (42, "42 s"), (60, "1 min"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_durations_use_one_or_two_units(seconds, words):
    assert duration(seconds) == words
    assert ago(NOON, at(seconds)) == (f"{words} ago" if seconds >= 1 else "now")
    assert ago(at(seconds), NOON) == (f"in {words}" if seconds >= 1 else "now")
