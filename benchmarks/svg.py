"""A drawing as a file: what stands around the shapes."""

from __future__ import annotations

from collections.abc import Sequence


def svg(width: int, height: float, font: str, size: int, shapes: Sequence[str]) -> str:
    """On a light ground, so that it can be read on a dark page too."""
    box = f'viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="{font}" font-size="{size}">'
    ground = f'<rect width="{width}" height="{height:.0f}" fill="#fffdf8"/>'
    return "\n".join([head, ground, *shapes, "</svg>\n"])
