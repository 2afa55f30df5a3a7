"""Label the cells of tables with their columns, for windows in which each row is a card instead of a line."""

from __future__ import annotations

import re

from markupsafe import Markup

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_HEADING = re.compile(r'<th scope="col"[^>]*>(.*?)</th>', re.DOTALL)
_CELL = re.compile(r"<td\b([^>]*)>(.*?)</td>", re.DOTALL)
_HIDDEN = '<span class="hidden">'
_NOTHING = ("", "–", '<span class="muted">–</span>')


def label_cells(page: str) -> Markup:
    """Give each cell its column's heading as `data-label`; mark those that say nothing as `data-none`.

    A heading that only screen readers get, such as that of a column of buttons, labels no cell. The page comes from
    templates that escape all values, so a tag in it is one of theirs.
    """
    return Markup(_TABLE.sub(lambda found: _label_table(found[0]), page))


def _label_table(table: str) -> str:
    labels = ["" if _HIDDEN in each else Markup(each).striptags() for each in _HEADING.findall(table)]

    def label_row(row: re.Match[str]) -> str:
        remaining = iter(labels)
        return _CELL.sub(lambda cell: _label_cell(cell, next(remaining, "")), row[0])

    return _ROW.sub(label_row, table)


def _label_cell(cell: re.Match[str], label: str) -> str:
    nothing = " data-none" if cell[2].strip() in _NOTHING else ""
    return f'<td{cell[1]} data-label="{Markup.escape(label)}"{nothing}>{cell[2]}</td>'
