"""Timelines, graph layouts and schema forms as computed for the pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
import pytest
from starlette.datastructures import QueryParams

from holdfast.control.graphs import GraphInfo, NodeInfo
from holdfast.control.runs import RunDetails
from holdfast.control.steps import StepInfo, StepTry, UnfinishedStep
from holdfast.errors import ErrorInfo
from holdfast.model.history import Entry
from holdfast.model.run import RunInfo
from holdfast.web.pages.failures import group_failures
from holdfast.web.pages.forms import Submission, form_fields, read_form
from holdfast.web.pages.graph_layout import MAX_BOXES, layout_graph
from holdfast.web.pages.node_table import NodeTable, build_node_table, group_address
from holdfast.web.pages.timeline import build_timeline

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def run_with(*history: tuple[str, float, int]) -> RunDetails:
    info = RunInfo(
        id=uuid4(), task="t", queue="q", priority=0, state="running", attempt=1, crashes=0, created_at=NOON
    )  # fmt: skip
    entries = [Entry(kind, at(seconds), attempt) for kind, seconds, attempt in history]
    nothing = {field.name: None for field in msgspec.structs.fields(RunDetails) if field.required}
    return RunDetails(**nothing | {"info": info, "options": {}, "history": entries})


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


def tries(*failed: float) -> list[StepTry]:
    error = ErrorInfo("error", "ValueError", "no")
    return [StepTry(n, 9, 1, at(seconds), 1.0, error, at(seconds + 1)) for n, seconds in enumerate(failed, 1)]


def test_failed_tries_are_bars_in_the_row_of_their_step():
    run = run_with(("enqueued", 0, 0), ("started", 0, 1), ("step_retrying", 2, 1))
    recorded = StepInfo(
        1, "a", "a", "step", "a#1", at(7), 6.0, None, None, False, None, False, 0, tries=tries(2, 4)
    )  # fmt: skip
    retrying = UnfinishedStep("b", "b", "b#1", "retrying", None, tries(8))
    interrupted = UnfinishedStep("c", "c", "c#1", "interrupted", None, tries(3))
    run = msgspec.structs.replace(run, steps=[recorded], unfinished_steps=[retrying, interrupted])
    timeline = build_timeline(run, at(10))
    assert timeline is not None
    told = {row.label: [(bar.kind, bar.left, bar.width) for bar in row.bars] for row in timeline.rows}
    assert told == {
        "attempt 1": [("running", 0, 1000)],
        "a": [("failed", 100, 100), ("failed", 300, 100), ("step", 500, 200)],
        "b": [("failed", 700, 100), ("running", 900, 100)],
        "c": [("failed", 200, 100)],
    }


def test_an_attempt_under_way_goes_on_until_now_and_nothing_begun_has_no_timeline():
    timeline = build_timeline(run_with(("enqueued", 0, 0), ("started", 5, 1)), at(10))
    assert timeline is not None
    assert [(bar.kind, bar.left, bar.width) for bar in timeline.rows[0].bars] == [("running", 500, 500)]
    assert build_timeline(run_with(("enqueued", 0, 0)), at(10)) is None


def failed(message: str, task: str = "charge") -> RunInfo:
    return RunInfo(
        id=uuid4(), task=task, queue="q", priority=0, state="failed", attempt=1, crashes=0, created_at=NOON,
        error=ErrorInfo("error", "ValueError", message),
    )  # fmt: skip


def test_failures_that_differ_only_in_ids_and_numbers_are_one_group():
    runs = [failed(f"order {n}: no funds on card {1000 + n}") for n in range(5)]
    runs += [failed("closed"), failed("closed"), failed("order 1: no funds on card 1", task="refund"), failed("7")]
    groups = [(group.count, group.task, group.message, group.search) for group in group_failures(runs)]
    assert groups == [
        (5, "charge", "order #: no funds on card #", ": no funds on card"),
        (2, "charge", "closed", "ValueError"),
        (1, "refund", "order 1: no funds on card 1", ": no funds on card"),
        (1, "charge", "7", "ValueError"),
    ]


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


NO_CONTROL: Any = None  # a graph with all its nodes needs none


def table(graph: GraphInfo, **query: str) -> NodeTable:
    return build_node_table(graph, QueryParams(query), NO_CONTROL)


def test_nodes_that_need_attention_come_first_and_others_in_the_order_in_which_they_were_added():
    fan = [node(f"n{n}", 2, ("a",), "failed" if n == 30 else "done") for n in range(50)]
    graph = GraphInfo(uuid4(), {}, [node("a", 1, task="first"), *fan, node("z", 3, ("n30",), "skipped")])
    first = table(graph)
    assert [each.name for each in first.nodes][:4] == ["n30", "z", "a", "n0"]
    assert (first.first, first.last, first.total, first.previous) == (1, 20, 52, None)
    assert first.next == f"/runs/{graph.id}?node_page=2#nodes"
    last = table(graph, node_page="3")
    assert (last.first, last.last, last.next) == (41, 52, None)
    assert last.nodes[-1].name == "n49"
    counts = {each.label: each.count for each in first.states}
    assert counts == {"all": 52, "failed": 1, "skipped": 1, "done": 50}


def test_the_table_shows_the_nodes_of_one_box_or_state():
    fan = [node(f"n{n}", 2, ("a",), "failed" if n == 30 else "done") for n in range(50)]
    graph = GraphInfo(uuid4(), {}, [node("a", 1), *fan])
    box = QueryParams(group_address(graph.id, "t", 2).partition("?")[2].partition("#")[0])
    group = build_node_table(graph, box, NO_CONTROL)
    assert (group.total, group.nodes[0].name, group.group) == (50, "n30", "t")
    assert [each.name for each in table(graph, node_state="failed").nodes] == ["n30"]
    assert "node_task=t" in group.states[1].address
    for odd in ("0", "-1", "99999999999", "x", "99"):
        assert table(graph, node_page=odd, node_state="odd").nodes
    assert table(graph, node_task="none").nodes == []


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
    reason: str
    note: str = ""
    share: float | None = None
    more: list[int] | None = None


FILLED = {
    "ok": "true", "amount": "5", "size": '"small"', "reason": "lost", "note": "", "share": "0.5", "more": "[1, 2]"
}  # fmt: skip


def submit(kind: Any, **texts: str) -> Submission:
    schema = None if kind is None else msgspec.json.schema(kind)
    return read_form(schema, {f"field:{name}": text for name, text in texts.items()})


def test_form_has_a_field_per_property_and_rebuilds_the_value():
    fields = [(field.name, field.kind, field.must_be_filled) for field in form_fields(msgspec.json.schema(Answer))]
    assert fields == [
        ("ok", "boolean", True), ("amount", "integer", True), ("size", "choice", True), ("reason", "long", True),
        ("note", "long", False), ("share", "number", False), ("more", "json", False),
    ]  # fmt: skip
    given = {"ok": True, "amount": 5, "size": "small", "reason": "lost", "share": 0.5, "more": [1, 2]}
    assert submit(Answer, **FILLED) == Submission(given, {})
    assert msgspec.convert(submit(Answer, **FILLED).value, Answer) == Answer(**given)


def test_untouched_form_satisfies_no_required_field():
    untouched = {field.name: field.default for field in form_fields(msgspec.json.schema(Answer))}
    for texts in (untouched, {}, dict.fromkeys(untouched, " \r\n")):
        assert submit(Answer, **texts).problems == {
            "ok": "Ok is required", "amount": "Amount is required", "size": "Size is required",
            "reason": "Reason is required",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("amount", "many", "Amount must be a whole number, not 'many'"),
        ("share", "NaN", "Share must be a number, not 'NaN'"),
        ("more", "[1", "More must be JSON, not '[1'"),
        ("ok", "maybe", "Ok must be yes or no, not 'maybe'"),
    ],
)
def test_text_that_is_no_value_is_a_problem_of_its_field(name, text, problem):
    assert submit(Answer, **{**FILLED, name: text}).problems == {name: problem}


@dataclass
class Loose:
    """Types that say that they may be empty, and defaults."""

    comment: Annotated[str, msgspec.Meta(min_length=0)]
    reviewer: str | None
    sure: bool | None
    tone: Literal["", "loud"]
    signature: str = "the team"
    count: int = 3
    urgent: bool = True


def test_empty_text_is_a_value_where_the_type_says_so():
    texts = {"comment": "", "reviewer": "", "sure": "", "tone": '""', "signature": "", "count": "", "urgent": ""}
    value = {"comment": "", "reviewer": None, "sure": None, "tone": "", "signature": ""}
    assert submit(Loose, **texts) == Submission(value, {})
    defaults = {field.name: field.default for field in form_fields(msgspec.json.schema(Loose))}
    assert submit(Loose, **{**defaults, "tone": '"loud"'}).value == {
        "comment": "", "reviewer": None, "sure": None, "tone": "loud", "signature": "the team", "count": 3,
        "urgent": True,
    }  # fmt: skip
    assert submit(Loose, tone='""').problems == {
        "comment": "Comment is required", "reviewer": "Reviewer is required", "sure": "Sure is required"
    }  # fmt: skip


def test_bounds_of_a_type_are_left_to_the_browser_too():
    kind = Annotated[int, msgspec.Meta(ge=1, le=9, description="How many.")]
    (field,) = form_fields(msgspec.json.schema(kind))
    assert (field.bounds, field.description) == ({"min": 1, "max": 9}, "How many.")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(bool, "true", True), (int, "5", 5), (str, "5", "5"), (list[int], "[1]", [1]), (int | None, "", None)],
)
def test_a_type_that_is_no_object_is_one_field(kind, text, value):
    assert submit(kind, output=text) == Submission(value, {})


@pytest.mark.parametrize("kind", [bool, int, str, list[int]])
def test_a_required_whole_value_is_not_satisfied_by_nothing(kind):
    assert submit(kind, output="").problems == {"output": "Output is required"}


def test_a_gate_without_a_type_takes_any_json_or_nothing():
    assert [submit(None, output=text).value for text in ("", '{"a": 1}')] == [None, {"a": 1}]
