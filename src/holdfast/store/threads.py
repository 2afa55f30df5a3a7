"""Threads of LangGraph: checkpoints, the values of their channels, and what tasks have written after them.

The store knows a thread by tenant and name, and its checkpoints by namespace and id. It doesn't interpret them: values,
writes and checkpoints are JSON texts of the serializer's output. A value is stored once for each version of its
channel, so that a checkpoint costs what has changed since the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.model.payloads import PayloadContext
from holdfast.store.module import StoreModule, Tx, id_rows, in_batches, in_chunks, json_rows
from holdfast.store.run_tree import lock_runs_later

PAGE_ROWS = 50
LAST = "\x7f"
"""Sorts behind all ids of checkpoints, which are UUIDs."""


class HeldClaim(NamedTuple):
    """A claim of a run. What is written for it counts only while it is valid."""

    session: str
    run: str
    fence: int


class ThreadKey(NamedTuple):
    """A thread, or the part of it that belongs to a namespace: '' is the graph itself, others are its subgraphs."""

    tenant: str | None
    thread: str
    ns: str = ""

    def columns(self) -> dict[str, Any]:
        """Return its columns by name."""
        return {"thread": self.thread, "tenant": self.tenant or "", "ns": self.ns}

    def context(self, *place: str) -> PayloadContext:
        """Return where a payload of this thread is stored."""
        return PayloadContext("thread", self.tenant, None, "\x1f".join((self.thread, self.ns, *place)))


class StoredCheckpoint(NamedTuple):
    """A checkpoint without the values of its channels."""

    id: str
    parent: str | None
    data: str
    metadata: str
    run: str | None = None


class StoredWrite(NamedTuple):
    """A write of a task. `n`: its position."""

    task: str
    n: int
    channel: str
    path: str
    data: str


class ListedCheckpoint(NamedTuple):
    """A checkpoint of a list."""

    key: ThreadKey
    checkpoint: StoredCheckpoint


class WholeThread(NamedTuple):
    """All checkpoints of a thread, and the versions of the values that are stored, both by namespace."""

    checkpoints: dict[str, list[StoredCheckpoint]]
    versions: dict[str, set[tuple[str, str]]]


class ThreadStore(StoreModule):
    """The threads of all tenants."""

    # Write

    def put(
        self,
        key: ThreadKey,
        checkpoint: StoredCheckpoint,
        values: Mapping[tuple[str, str], str],
        claim: HeldClaim | None = None,
    ) -> bool:
        """Store a checkpoint and new values, by channel and version. Return False if the claim isn't valid any more."""
        rows = self._checkpoint_rows(key, [checkpoint])
        value_rows = self._value_rows(key, values)

        def work(tx: Tx) -> bool:
            if not _is_held(tx, claim):
                return False
            _insert(tx, "put_thread_values", value_rows)
            _insert(tx, "put_thread_checkpoint", rows)
            return True

        return self._transaction("threads", work)

    def put_writes(
        self, key: ThreadKey, id: str, writes: Iterable[StoredWrite], claim: HeldClaim | None = None
    ) -> bool:
        """Store what a task has written after a checkpoint. Return False if the claim isn't valid any more."""
        rows = self._write_rows(key, id, writes)

        def work(tx: Tx) -> bool:
            if not _is_held(tx, claim):
                return False
            _insert(tx, "put_thread_writes", rows)
            return True

        return self._transaction("threads", work)

    def copy(self, source: ThreadKey, target: ThreadKey) -> None:
        """Copy a whole thread to another one."""
        checkpoints: list[dict[str, Any]] = []
        values: list[dict[str, Any]] = []
        writes: list[dict[str, Any]] = []
        where: dict[str, Any] = {"thread": source.thread, "tenant": source.tenant or ""}
        for ns, *row in self._execute("threads", "list_whole_thread", **where):
            of, to = source._replace(ns=ns), target._replace(ns=ns)
            id, parent, run, data, metadata = row
            stored = self._unpacked(of, StoredCheckpoint(id, parent, data, metadata, run))
            checkpoints += self._checkpoint_rows(to, [stored])
        for ns, channel, version, data in self._execute("threads", "list_all_thread_values", **where):
            of, to = source._replace(ns=ns), target._replace(ns=ns)
            text = self._unpack(of, data, "value", channel, version)
            values += self._value_rows(to, {(channel, version): text})
        for ns, id, *write in self._execute("threads", "list_all_thread_writes", **where):
            of, to = source._replace(ns=ns), target._replace(ns=ns)
            writes += self._write_rows(to, id, [self._unpacked_write(of, id, write)])

        def work(tx: Tx) -> None:
            _insert(tx, "put_thread_values", values)
            _insert(tx, "put_thread_checkpoint", checkpoints)
            _insert(tx, "put_thread_writes", writes)

        self._transaction("threads", work)

    # Delete

    def delete(self, tenant: str | None, threads: Iterable[str]) -> None:
        """Delete threads."""
        chunks = in_chunks(sorted(set(threads)))

        def work(tx: Tx) -> None:
            for chunk in chunks:
                rows = json_rows({"thread": thread} for thread in chunk)
                for statement in ("clear_thread_checkpoints", "clear_thread_values", "clear_thread_writes"):
                    tx.execute(statement, rows=rows, tenant=tenant or "")

        self._transaction("threads", work)

    def delete_of_runs(self, tenant: str | None, runs: Iterable[str]) -> set[str]:
        """Delete the checkpoints that runs have created, and their writes; return the threads."""
        chunks = in_chunks(sorted(set(runs)))

        def work(tx: Tx) -> set[str]:
            found: set[str] = set()
            for chunk in chunks:
                rows = json_rows({"run": run} for run in chunk)
                deleted: dict[ThreadKey, list[str]] = {}
                for thread, ns, id in tx.execute("delete_checkpoints_of_runs", rows=rows, tenant=tenant or ""):
                    deleted.setdefault(ThreadKey(tenant, thread, ns), []).append(id)
                for key, ids in deleted.items():
                    tx.execute("delete_thread_writes", rows=id_rows(ids), **key.columns())
                    found.add(key.thread)
            return found

        return self._transaction("threads", work)

    def forget(self, key: ThreadKey, ids: Sequence[str], versions: Iterable[tuple[str, str]]) -> None:
        """Delete checkpoints of a thread with their writes, and versions of values."""
        by_channel: dict[str, list[str]] = {}
        for channel, version in versions:
            by_channel.setdefault(channel, []).append(version)

        def work(tx: Tx) -> None:
            for chunk in in_chunks(ids):
                tx.execute("delete_thread_checkpoints", rows=id_rows(chunk), **key.columns())
                tx.execute("delete_thread_writes", rows=id_rows(chunk), **key.columns())
            for channel, unused in by_channel.items():
                for chunk in in_chunks(unused):
                    rows = json_rows({"version": version} for version in chunk)
                    tx.execute("delete_thread_values", rows=rows, channel=channel, **key.columns())

        self._transaction("threads", work)

    # Read

    def read(self, key: ThreadKey, id: str | None = None) -> StoredCheckpoint | None:
        """Return a checkpoint of a thread: the one with this id, or the last one."""
        if id is None:
            rows = self._execute("threads", "read_last_thread_checkpoint", **key.columns())
        else:
            rows = self._execute("threads", "read_thread_checkpoint", id=id, **key.columns())
        return self._unpacked(key, StoredCheckpoint(*rows[0])) if rows else None

    def details(
        self, key: ThreadKey, id: str, versions: Iterable[tuple[str, str]]
    ) -> tuple[dict[str, str], list[StoredWrite]]:
        """Return the values of these versions by channel, and the writes after a checkpoint."""
        rows = json_rows({"channel": channel, "version": version} for channel, version in versions)

        def work(tx: Tx) -> tuple[dict[str, str], list[StoredWrite]]:
            values = tx.queue("read_thread_values", rows=rows, **key.columns())
            writes = tx.execute("read_thread_writes", id=id, **key.columns())
            return (
                {channel: self._unpack(key, data, "value", channel, version) for channel, version, data in values()},
                [self._unpacked_write(key, id, row) for row in writes],
            )

        return self._transaction("threads", work)

    def page(
        self, key: ThreadKey | None, tenant: str | None, ns: str | None, before: str, after: ListedCheckpoint | None
    ) -> list[ListedCheckpoint]:
        """Return a page of checkpoints older than `before`, the newest first, behind `after`.

        `key`: of this thread, else of all threads of the tenant. `ns`: of this namespace only.
        """
        at: dict[str, Any] = {"before": before, "after_ns": ""}
        if after is not None:
            at = {"before": after.checkpoint.id, "after_ns": after.key.ns}
        if key is None:
            thread = "" if after is None else after.key.thread
            rows = self._execute(
                "threads", "list_tenant_checkpoints", limit=PAGE_ROWS, tenant=tenant or "", after_thread=thread, **at
            )
        else:
            where = key.columns() | {"ns": ns}
            rows = self._execute("threads", "list_thread_checkpoints", limit=PAGE_ROWS, **where, **at)
        found = [(ThreadKey(tenant, thread, of), StoredCheckpoint(*row)) for thread, of, *row in rows]
        return [ListedCheckpoint(of, self._unpacked(of, checkpoint)) for of, checkpoint in found]

    def whole(self, tenant: str | None, thread: str) -> WholeThread:
        """Return what a thread consists of, to find out what isn't needed any more.

        The versions are read first: one that was stored meanwhile, with its checkpoint, isn't taken for unused.
        """
        where: dict[str, Any] = {"thread": thread, "tenant": tenant or ""}

        def work(tx: Tx) -> WholeThread:
            found = WholeThread({}, {})
            for ns, channel, version in tx.execute("list_thread_versions", **where):
                found.versions.setdefault(ns, set()).add((channel, version))
            for ns, id, parent, run, data, metadata in tx.execute("list_whole_thread", **where):
                stored = StoredCheckpoint(id, parent, data, metadata, run)
                key = ThreadKey(tenant, thread, ns)
                found.checkpoints.setdefault(ns, []).append(self._unpacked(key, stored))
            return found

        return self._transaction("threads", work)

    # Rows

    def _checkpoint_rows(self, key: ThreadKey, checkpoints: Iterable[StoredCheckpoint]) -> list[dict[str, Any]]:
        pack, what = self._context.payloads.pack, f"a checkpoint of thread {key.thread!r}"
        return [
            {
                **key.columns(), "id": each.id, "parent": each.parent, "run": each.run,
                "data": pack(each.data, key.context("checkpoint", each.id), what),
                "metadata": pack(each.metadata, key.context("metadata", each.id), what),
            }
            for each in checkpoints
        ]  # fmt: skip

    def _value_rows(self, key: ThreadKey, values: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
        pack = self._context.payloads.pack
        return [
            {
                **key.columns(), "channel": channel, "version": version,
                "data": pack(text, key.context("value", channel, version), "the value of channel", channel),
            }
            for (channel, version), text in values.items()
        ]  # fmt: skip

    def _write_rows(self, key: ThreadKey, id: str, writes: Iterable[StoredWrite]) -> list[dict[str, Any]]:
        pack = self._context.payloads.pack
        return [
            {
                **key.columns(), "id": id, **each._asdict(),
                "data": pack(each.data, _write_context(key, id, each.task, each.n), "a write to channel", each.channel),
            }
            for each in writes
        ]  # fmt: skip

    def _unpack(self, key: ThreadKey, data: str, *place: str) -> str:
        return self._context.payloads.unpack(data, key.context(*place))

    def _unpacked(self, key: ThreadKey, stored: StoredCheckpoint) -> StoredCheckpoint:
        return stored._replace(
            data=self._unpack(key, stored.data, "checkpoint", stored.id),
            metadata=self._unpack(key, stored.metadata, "metadata", stored.id),
        )

    def _unpacked_write(self, key: ThreadKey, id: str, row: Sequence[Any]) -> StoredWrite:
        write = StoredWrite(*row)
        context = _write_context(key, id, write.task, write.n)
        return write._replace(data=self._context.payloads.unpack(write.data, context))


def _write_context(key: ThreadKey, id: str, task: str, n: int) -> PayloadContext:
    return key.context("write", id, task, str(n))


def _is_held(tx: Tx, claim: HeldClaim | None) -> bool:
    """Lock the run of a claim; return whether the claim is still valid."""
    if claim is None:
        return True
    session, runs = tx.queue("lock_session", session=claim.session), lock_runs_later(tx, [claim.run])
    if not session():
        return False
    run = runs().get(claim.run)
    return run is not None and run.belongs_to(claim.session, claim.fence)


def _insert(tx: Tx, statement: str, rows: Sequence[dict[str, Any]]) -> None:
    for batch in in_batches(rows, lambda row: len(row["data"])):
        tx.queue(statement, rows=json_rows(batch))
