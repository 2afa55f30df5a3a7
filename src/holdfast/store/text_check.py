"""Check runs that the database found by a text: a pattern on stored JSON finds too many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import PayloadError
from holdfast.model.codec import decode
from holdfast.model.failure import error_from_json
from holdfast.model.payloads import PayloadContext
from holdfast.model.previews import displayed_arguments
from holdfast.model.text_search import MAX_SEARCHED_ARGS_BYTES, TextSearch, folds_in_database
from holdfast.store.module import Tx, id_rows
from holdfast.store.run_queries import RunRow


class SearchedFields(NamedTuple):
    """What a text is searched in, as it is displayed. `error`: its code, type and message."""

    args: Any
    key: str | None
    tags: Sequence[str]
    error: Sequence[str]


class TextCheck:
    """Drops rows that the database found by a text, but whose displayed values don't contain it.

    `error`: a text that the error must contain.
    """

    def __init__(self, tx: Tx, text: str | None, error: str | None) -> None:
        self._tx = tx
        self._search = None if text is None else TextSearch(text)
        self._error = None if error is None or folds_in_database(error) else error.casefold()
        self.count = 0
        """How many rows were checked."""
        self.matches: dict[str, tuple[str, ...]] = {}
        """The fields that match, by run."""

    @property
    def is_needed(self) -> bool:
        """Whether rows are checked at all."""
        return self._search is not None or self._error is not None

    def accepted(self, rows: Sequence[RunRow]) -> Sequence[RunRow]:
        """Return the rows that match."""
        if not self.is_needed:
            return rows
        self.count += len(rows)
        if self._error is not None:
            rows = [row for row in rows if self._error in "\n".join(_error_words(row)).casefold()]
        if self._search is None:
            return rows
        matches = {row.id: self._search.matches(*found) for row, found in zip(rows, self._fields(rows), strict=True)}
        self.matches |= {id: fields for id, fields in matches.items() if fields}
        return [row for row in rows if matches[row.id]]

    def _fields(self, rows: Sequence[RunRow]) -> list[SearchedFields]:
        cut = [row.id for row in rows if not row.has_all_args and row.args_bytes <= MAX_SEARCHED_ARGS_BYTES]
        whole: dict[str, str] = {}
        if cut:
            whole = {str(id): text for id, text in self._tx.execute("read_arguments", rows=id_rows(cut))}
        return [self._fields_of(row, row.args if row.has_all_args else whole.get(row.id)) for row in rows]

    def _fields_of(self, row: RunRow, text: str | None) -> SearchedFields:
        args = None
        if text is not None and text[:1] != "~":
            context = PayloadContext("args", row.tenant, row.id)
            args = displayed_arguments(self._tx.payloads.unpack(text, context))
        stored = _decoded(row.options, _StoredKey)
        tags = _decoded(row.tags, tuple[str, ...])
        return SearchedFields(args, None if stored is None else stored.key, tags or (), _error_words(row))


def _error_words(row: RunRow) -> list[str]:
    """Return what is searched of an error."""
    if row.error is None:
        return []
    error = error_from_json(row.error)
    return [error.code, error.type, error.message]


class _StoredKey(msgspec.Struct):
    """What the options of a run say about its key."""

    key: str | None = None


def _decoded(text: str | None, kind: Any) -> Any:
    """Decode a column; None if it is corrupt."""
    try:
        return None if text is None else decode(text, kind)
    except PayloadError:
        return None
