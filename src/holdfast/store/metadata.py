"""Write the metadata of new runs."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from holdfast.database import Row
from holdfast.model.metadata import metadata_items
from holdfast.store.module import StatementCall, Tx, in_batches, json_rows
from holdfast.store.rows import NewRun


def metadata_steps(
    runs: Iterable[tuple[str, str | None]], statement: str = "add_metadata"
) -> Generator[StatementCall, list[Row], None]:
    """Add the metadata of runs, given by id; with `set_metadata`, of runs that may have some already."""
    rows = [
        {"run": id, "name": name, "value": value}
        for id, metadata in runs
        if metadata is not None
        for name, value in metadata_items(metadata)
    ]
    for batch in in_batches(rows, lambda row: len(row["value"])):
        yield statement, {"rows": json_rows(batch)}


def add_metadata(tx: Tx, runs: Iterable[NewRun]) -> None:
    """Carry out `metadata_steps` in a transaction of the store."""
    for name, values in metadata_steps((run.id, run.metadata) for run in runs):
        tx.execute(name, **values)
