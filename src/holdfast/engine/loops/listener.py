"""Listen for commits, and wake the loops that may have work. Only a hint: all loops poll as well.

The database announces commits of other processes. Commits of clients in this process are known without it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.engine.loops.base import Loop
from holdfast.store import Store
from holdfast.store.module import ClientClaims, ClientCommitCallback

MAX_WAIT_S = 1.0


class CommitListener(Loop):
    """Waits for notifications (PostgreSQL) or for changes of the data version (SQLite)."""

    name = "listener"

    def __init__(
        self,
        store: Store,
        channel: str,
        on_commit: Callable[[], None],
        on_client_commit: ClientCommitCallback,
        client_claim: ClientClaims,
        is_claimed: Callable[[str], bool],
    ) -> None:
        super().__init__()
        self._store = store
        self._listener = store.database.change_listener(channel=channel)
        self._on_commit = on_commit
        self._on_client_commit = on_client_commit
        self._client_claim = client_claim
        self._is_claimed = is_claimed
        self._subscribed: list[Callable[[], None]] = []

    def start(self) -> None:
        self._subscribed = [
            self._store.on_client_commit(self._on_client_commit),
            self._store.claim_for_clients(self._client_claim),
            self._store.report_claimed(self._is_claimed),
        ]
        super().start()

    def tick(self) -> float:
        if self._listener.wait(MAX_WAIT_S, self._stopping):
            self._on_commit()
        return 0.0

    def stop(self, timeout: float | None = None) -> None:
        for unsubscribe in self._subscribed:
            unsubscribe()
        self._stopping.set()
        self._listener.interrupt()
        super().stop(timeout)
        if not self.running:
            self._listener.close()
