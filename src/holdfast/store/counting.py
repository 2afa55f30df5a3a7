"""Counting runs without reading very many: each state by its own index, and no further than to a bound."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.part import Part

MOST = 100_000
"""So many entries of an index are counted,"""
MOST_SCATTERED = 20_000
"""and so many where the row of each must be read as well, which stands anywhere in the table."""
MOST_ROWS = 20_000
"""A table that has no more, as far as is known, is counted whole."""

_SCATTERED = ("count_held", "count_scheduled", "count_running", "count_asleep")


class Counted(NamedTuple):
    """Unfinished runs in a state by lane. Not exact: there are more than these."""

    by_lane: dict[int, int]
    exact: bool


class Total(NamedTuple):
    """How many runs there are in all."""

    runs: int
    exact: bool


class Counting(Part):
    """How many runs there are."""

    def unfinished(self) -> dict[str, Counted]:
        """By state, as it is stored, and by lane."""
        found: dict[str, Counted] = {}
        for statement, most in {"count_ready": MOST, **dict.fromkeys(_SCATTERED, MOST_SCATTERED)}.items():
            rows = self._one("read", statement, limit=most)
            exact = sum(runs for _, _, runs in rows) < most
            for state, lane, runs in rows:
                by_lane, before = found.get(state, ({}, True))
                by_lane[int(lane)] = by_lane.get(int(lane), 0) + int(runs)
                found[state] = Counted(by_lane, before and exact)
        return found

    def unwell(self) -> dict[str, tuple[int, bool]]:
        """Runs that ended badly, by state, and whether these are all."""
        found = {}
        for state in ("failed", "cancelled", "skipped"):
            ((runs,),) = self._one("read", "count_unwell", limit=MOST, state=state)
            if runs:
                found[state] = (int(runs), runs < MOST)
        return found

    def total(self) -> Total:
        """All runs: what the database believes, or counted where that is little."""
        ((believed,),) = self._one("read", "believed_total")
        if believed > MOST_ROWS:
            return Total(int(believed), False)
        ((runs,),) = self._one("read", "count_runs", limit=MOST)
        return Total(int(runs), runs < MOST)
