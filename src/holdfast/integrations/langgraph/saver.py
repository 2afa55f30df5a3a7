"""`HoldfastSaver`: a LangGraph checkpointer whose threads are in the tables of an app.

What LangGraph's serializer returns is stored as the JSON text `[type, base64]`, through the app's payload codec. The
value of a channel is stored once per version, and a checkpoint has only the versions.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.errors import ConfigError, LeaseLost, PayloadError, TaskError
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.codec import decode
from holdfast.model.names import check_name
from holdfast.store.threads import LAST, HeldClaim, ListedCheckpoint, StoredCheckpoint, StoredWrite, ThreadKey

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.store import Store
    from holdfast.store.threads import ThreadStore

DELTA_COUNTERS = "counters_since_delta_snapshot"
"""The metadata in which LangGraph names the channels of which a checkpoint may have only the changes."""
_encode = msgspec.json.Encoder().encode


class HoldfastSaver(BaseCheckpointSaver[str]):
    """A LangGraph checkpointer on the app's database: its connections, schema, codec and limits of payloads.

    Its tables are part of Holdfast's, so `holdfast migrate` creates them. Nothing is pickled.

    Args:
        app: The app.
        tenant: The tenant whose threads it stores and sees. None: threads without a tenant.
        serde: LangGraph's serializer. Defaults to `JsonPlusSerializer()`, whose fallback to pickle stays off.

    Example:
        ```python
        graph = builder.compile(checkpointer=HoldfastSaver(app))
        graph.invoke({"question": "Why?"}, {"configurable": {"thread_id": "ada"}})
        ```
    """

    def __init__(self, app: Holdfast, *, tenant: str | None = None, serde: SerializerProtocol | None = None) -> None:
        self._configure(tenant, serde)
        self._app: Holdfast | None = app
        self._store: Store | None = None

    def _configure(self, tenant: str | None, serde: SerializerProtocol | None) -> None:
        super().__init__(serde=serde if serde is not None else JsonPlusSerializer(pickle_fallback=False))
        plain = self.serde.serde if isinstance(self.serde, EncryptedSerializer) else self.serde
        if getattr(plain, "pickle_fallback", False):
            raise ConfigError(
                "HoldfastSaver: the serializer falls back to pickle, which runs code that is stored in the database; "
                "use JsonPlusSerializer(pickle_fallback=False)"
            )
        self.tenant = None if tenant is None else check_name(tenant, "the tenant of a HoldfastSaver")
        self._claim: HeldClaim | None = None
        self._expected: str | None = None

    @classmethod
    def for_run(
        cls, store: Store, tenant: str | None, claim: HeldClaim, serde: SerializerProtocol | None = None
    ) -> HoldfastSaver:
        """Return a saver whose writes count only while a claim of a run is valid."""
        saver = cls.__new__(cls)
        saver._configure(tenant, serde)
        saver._app, saver._store, saver._claim = None, store, claim
        return saver

    def expect(self, id: str) -> None:
        """Refuse to continue the thread, unless this is its last checkpoint."""
        self._expected = id

    @property
    def _threads(self) -> ThreadStore:
        if self._app is not None:
            return self._app.store.threads  # looked up each time: tests give an app another store
        assert self._store is not None
        return self._store.threads

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - the base class has it
        """Return a version behind this one. A part is random, so that branches of a thread have different ones."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:012d}.{secrets.token_hex(8)}"

    # Write

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint with the values of the channels that have changed."""
        key = self._key(config)
        data: dict[str, Any] = dict(checkpoint)
        current: Mapping[str, Any] = data.pop("channel_values")
        values = {
            (channel, _version(version)): self._dump(current[channel])
            for channel, version in new_versions.items()
            if channel in current
        }
        stored_metadata = get_checkpoint_metadata(config, metadata)
        run = self._claim.run if self._claim is not None else stored_metadata.get("run_id")
        stored = StoredCheckpoint(
            checkpoint["id"],
            get_checkpoint_id(config),
            self._dump(data),
            self._dump(stored_metadata),
            None if run is None else str(run),
        )
        self._check_held(self._threads.put(key, stored, values, self._claim))
        return _config(key, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written, so that it isn't executed again."""
        rows = [
            StoredWrite(task_id, WRITES_IDX_MAP.get(channel, n), channel, task_path, self._dump(value))
            for n, (channel, value) in enumerate(writes)
        ]
        last = {row.n: row for row in rows}  # of writes to a special channel, the last one counts
        id = config["configurable"]["checkpoint_id"]
        self._check_held(self._threads.put_writes(self._key(config), id, last.values(), self._claim))

    def _check_held(self, written: bool) -> None:
        if not written and self._claim is not None:
            raise LeaseLost(f"run {self._claim.run} continues elsewhere: what its graph writes here is discarded")

    # Read

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint of a thread: the one that the config names, or the last one."""
        key = self._key(config)
        stored = self._threads.read(key, get_checkpoint_id(config))
        if self._expected is not None and not key.ns and get_checkpoint_id(config) is None:
            if stored is None or stored.id != self._expected:
                raise continued_elsewhere(key.thread)
            self._expected = None
        return None if stored is None else self._tuple(key, stored, self._load(stored.metadata))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class names it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, the newest first.

        Args:
            config: Of this thread, of its namespace if it is given. None: of all threads of the tenant.
            filter: Only those whose metadata has these values.
            before: Only those older than the checkpoint of this config.
            limit: At most so many.
        """
        key = None if config is None else self._key(config)
        ns = None if config is None else config["configurable"].get("checkpoint_ns")
        only = None if config is None else get_checkpoint_id(config)
        first = (get_checkpoint_id(before) if before is not None else None) or LAST
        last: ListedCheckpoint | None = None
        while limit is None or limit > 0:
            page = self._threads.page(key, self.tenant, ns, first, last)
            if not page:
                return
            for last in page:
                metadata = self._load(last.checkpoint.metadata)
                if only is not None and last.checkpoint.id != only:
                    continue
                if any(metadata.get(name) != value for name, value in (filter or {}).items()):
                    continue
                yield self._tuple(last.key, last.checkpoint, metadata)
                if limit is not None:
                    limit -= 1
                    if limit <= 0:
                        return

    def _tuple(self, key: ThreadKey, stored: StoredCheckpoint, metadata: Any) -> CheckpointTuple:
        checkpoint = self._load(stored.data)
        versions = [(channel, _version(version)) for channel, version in checkpoint["channel_versions"].items()]
        values, writes = self._threads.details(key, stored.id, versions)
        writes.sort(key=lambda write: writes_sort_key(write.path, write.task, write.n))
        checkpoint["channel_values"] = {channel: self._load(text) for channel, text in values.items()}
        return CheckpointTuple(
            config=_config(key, stored.id),
            checkpoint=checkpoint,
            metadata=metadata,
            parent_config=None if stored.parent is None else _config(key, stored.parent),
            pending_writes=[(write.task, write.channel, self._load(write.data)) for write in writes],
        )

    # Whole threads

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        self._threads.delete(self.tenant, [str(thread_id)])

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs have created: runs of Holdfast, or those with this `run_id` as metadata."""
        for thread in self._threads.delete_of_runs(self.tenant, map(str, run_ids)):
            self._forget_unused(thread, keep_latest=False)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its checkpoints."""
        source, target = (ThreadKey(self.tenant, str(id)) for id in (source_thread_id, target_thread_id))
        self._threads.copy(source, target)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads.

        Args:
            thread_ids: The threads.
            strategy: `"keep_latest"` keeps the last checkpoint of each namespace, and those from which LangGraph
                rebuilds its `DeltaChannel` values. `"delete"` deletes the threads.
        """
        if strategy == "delete":
            self._threads.delete(self.tenant, map(str, thread_ids))
        elif strategy == "keep_latest":
            for thread in thread_ids:
                self._forget_unused(str(thread), keep_latest=True)
        else:
            raise ConfigError(f"prune: unknown strategy {strategy!r}; use 'keep_latest' or 'delete'")

    def _forget_unused(self, thread: str, *, keep_latest: bool) -> None:
        """Delete the values that no checkpoint uses, and with `keep_latest` the checkpoints before the last ones."""
        whole = self._threads.whole(self.tenant, thread)
        for ns in {*whole.checkpoints, *whole.versions}:
            stored = {each.id: each for each in whole.checkpoints.get(ns, [])}
            available = whole.versions.get(ns, set())
            kept = self._needed(stored, available) if keep_latest and stored else list(stored)
            used = {version for id in kept for version in self._versions(stored[id])}
            key = ThreadKey(self.tenant, thread, ns)
            self._threads.forget(key, sorted(stored.keys() - set(kept)), available - used)

    def _versions(self, stored: StoredCheckpoint) -> set[tuple[str, str]]:
        versions = self._load(stored.data)["channel_versions"]
        return {(channel, _version(version)) for channel, version in versions.items()}

    def _needed(self, stored: Mapping[str, StoredCheckpoint], available: set[tuple[str, str]]) -> Sequence[str]:
        """Return the last checkpoint, and before it those up to one that has the values of all delta channels."""
        at: str | None = max(stored)
        missing = set(self._load(stored[max(stored)].metadata).get(DELTA_COUNTERS, ()))
        kept: list[str] = []
        while at is not None and at in stored:
            kept.append(at)
            missing -= {channel for channel, version in self._versions(stored[at]) if (channel, version) in available}
            if not missing:
                break
            at = stored[at].parent
        return kept

    # Awaitable forms

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. The awaitable form of `put`."""
        return await run_in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written. The awaitable form of `put_writes`."""
        await run_in_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint of a thread. The awaitable form of `get_tuple`."""
        return await run_in_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class names it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over checkpoints, the newest first. The awaitable form of `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await run_in_thread(next, found, None)) is not None:
            yield each

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread. The awaitable form of `delete_thread`."""
        await run_in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs have created. The awaitable form of `delete_for_runs`."""
        await run_in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread. The awaitable form of `copy_thread`."""
        await run_in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads. The awaitable form of `prune`."""
        await run_in_thread(self.prune, thread_ids, strategy=strategy)

    # Values

    def _key(self, config: RunnableConfig) -> ThreadKey:
        configurable = config.get("configurable") or {}
        thread = configurable.get("thread_id")
        if thread is None:
            raise ConfigError('HoldfastSaver: the config names no thread: {"configurable": {"thread_id": "…"}}')
        return ThreadKey(self.tenant, str(thread), configurable.get("checkpoint_ns") or "")

    def _dump(self, value: Any) -> str:
        type, data = self.serde.dumps_typed(value)
        return _encode((type, data)).decode()

    def _load(self, text: str) -> Any:
        type, data = decode(text)
        if type.startswith("pickle"):
            raise PayloadError("the thread has a pickled value, which HoldfastSaver never reads")
        return self.serde.loads_typed((type, base64.b64decode(data)))


def continued_elsewhere(thread: str) -> TaskError:
    """Return the error of a run whose thread isn't where it has left it."""
    return TaskError(
        f"thread {thread!r} was continued by something else while a run used it: give each run a thread of its own, or "
        "run them one after the other, for example with a unique name"
    )


def _version(version: str | int | float) -> str:
    """Return the text of a version that tells the number 1 from the text '1'."""
    return _encode(version).decode()


def _config(key: ThreadKey, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": key.thread, "checkpoint_ns": key.ns, "checkpoint_id": id}}
