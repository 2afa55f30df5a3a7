"""Render the Helm chart without Helm: the subset of its template language that the chart uses.

Anything else in a template raises an error, so that the chart can't use what this renderer ignores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "holdfast"
RELEASE = "shop"
TAG = re.compile(r"\{\{(-?) *(.*?) *(-?)\}\}")
PATH = re.compile(r"\.Values((?:\.\w+)+)")


def values(**changes: Any) -> dict[str, Any]:
    """Return the default values with changes, such as `autoscaling={"enabled": True}`."""
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, change in changes.items():
        found[name] = found[name] | change if isinstance(change, Mapping) else change
    return found


def render(**changes: Any) -> list[dict[str, Any]]:
    """Return all objects of the chart."""
    given = values(**changes)
    texts = [render_text(path.read_text(), given) for path in sorted((CHART / "templates").glob("*.yaml"))]
    return [each for text in texts for each in yaml.safe_load_all(text) if each is not None]


def render_text(text: str, given: Mapping[str, Any]) -> str:
    tokens = list(_tokens(text))
    shown, rest = _block(tokens, given, None)
    if rest:
        raise ValueError(f"unexpected {rest[0]}")
    return shown


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, trims = 0, False
    for tag in TAG.finditer(text):
        before = text[at : tag.start()]
        before = before.lstrip() if trims else before
        yield "text", before.rstrip() if tag[1] else before
        yield "tag", tag[2]
        at, trims = tag.end(), bool(tag[3])
    yield "text", text[at:].lstrip() if trims else text[at:]


def _block(tokens: Sequence[tuple[str, str]], given: Mapping[str, Any], dot: Any) -> tuple[str, Sequence]:
    """Render up to the `end` of this block; return the text and the tokens from there on."""
    shown = ""
    while tokens:
        (kind, text), tokens = tokens[0], tokens[1:]
        if kind == "text":
            shown += text
        elif text == "end":
            return shown, [("tag", "end"), *tokens]
        elif text.startswith(("if ", "range ")):
            word, _, condition = text.partition(" ")
            negated = condition.startswith("not ")
            value = _value(condition.removeprefix("not "), given, dot)
            rounds = list(value) if word == "range" else [dot] * (bool(value) != negated)
            rest = tokens
            for each in rounds:
                inner, rest = _block(tokens, given, each)
                shown += inner
            if not rounds:
                _, rest = _block(tokens, given, dot)
            tokens = rest[1:]
        else:
            shown += _text(text, given, dot)
    return shown, []


def _text(expression: str, given: Mapping[str, Any], dot: Any) -> str:
    if expression.startswith('printf "%q" '):
        return json.dumps(str(_value(expression.removeprefix('printf "%q" '), given, dot)))
    return str(_value(expression, given, dot))


def _value(expression: str, given: Mapping[str, Any], dot: Any) -> Any:
    if expression == ".":
        return dot
    if expression == ".Release.Name":
        return RELEASE
    path = PATH.fullmatch(expression)
    if path is None:
        raise ValueError(f"the chart uses {expression!r}, which tests can't render")
    found: Any = given
    for name in path[1][1:].split("."):
        found = found[name]
    return found
