"""Graphs and classes without type arguments, with the types that a type checker must infer. Checked, never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from holdfast import Graph, Holdfast, Node, Output, Request, Run, RunInfo, Task

app = Holdfast("sqlite:///:memory:")


@dataclass
class Order:
    number: int
    customer: str


@app.task
def build(name: str) -> str:
    return name


@app.task
def count(files: list[str], scale: int = 1) -> int:
    return len(files) * scale


@app.task
def total(numbers: Sequence[int]) -> float:
    return sum(numbers)


@app.task
def merge(first: dict[str, int], second: list[str]) -> dict[str, int]:
    return first


@app.task
def ship(order: Order) -> bytes:
    return b""


@app.task
def report(title: str, files: list[str], pages: int) -> str:
    return title


def outputs_are_arguments(g: Graph) -> None:
    name: Node[str] = g.add(build, "client")
    number = g.add(count, ["a"])
    untyped = g.gate("approve")
    assert_type(number, Node[int])
    assert_type(g.add(build, name.output), Node[str])
    assert_type(g.add(build, untyped.output["name"]), Node[str])
    assert_type(g.add(merge, untyped.output, untyped.output["names"]), Node[dict[str, int]])
    assert_type(g.add(ship, Order(1, "ada")), Node[bytes])
    assert_type(g.add(ship, {"number": number.output, "customer": name.output}), Node[bytes])

    g.add(build, 5)  # type: ignore[misc]
    g.add(build, number.output)  # type: ignore[misc]
    g.add(ship, name.output)  # type: ignore[misc]


def outputs_are_inside_lists_and_dicts(g: Graph) -> None:
    names = [g.add(build, name, name=name) for name in ("client", "server")]
    number = g.add(count, ["a"])
    untyped = g.gate("approve")
    assert_type(g.add(count, [each.output for each in names], after=names, name="count"), Node[int])
    assert_type(g.add(count, [names[0].output, "README"]), Node[int])
    assert_type(g.add(count, [untyped.output["name"], untyped.output]), Node[int])
    assert_type(g.add(count, [each.output for each in names], number.output), Node[int])
    assert_type(g.add(total, [number.output, 10]), Node[float])
    assert_type(g.add(merge, {"a": 1}, [each.output for each in names]), Node[dict[str, int]])
    assert_type(g.add(merge, {"a": number.output}, ["a"]), Node[dict[str, int]])
    assert_type(g.add(report, names[0].output, [each.output for each in names], number.output), Node[str])
    mixed: list[Output[str] | str] = [names[0].output, "README"]
    assert_type(g.add(count, mixed, 2), Node[int])

    g.add(count, [number.output])  # type: ignore[misc]
    g.add(count, [names[0].output, 1])  # type: ignore[misc]
    g.add(count, [1])  # type: ignore[misc]
    g.add(build, [names[0].output])  # type: ignore[misc]


def without_type_arguments(info: RunInfo, run: Run, request: Request, node: Node, task: Task) -> None:
    assert_type(info.result, Any | None)
    assert_type(info, RunInfo[Any])
    assert_type(run.result(), Any)
    assert_type(request, Request[Any])
    assert_type(node.output, Output[Any])
    assert_type(task.enqueue(1, 2, three=3), Run[Any])


@app.on_failure
def alert(run: RunInfo) -> None:
    assert_type(run, RunInfo[Any])
