"""Record requests that a role or scope refused in the audit log: not all of them, so that nobody can flood it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.control.audit import AuditControl, acting
from holdfast.errors import StoreError
from holdfast.model.audit import Via
from holdfast.web.responses import RequestError
from holdfast.web.throttle import MAX_CLIENTS, Throttle

if TYPE_CHECKING:
    from holdfast.web.auth import Principal, SiteContext

CODES = frozenset({"role", "read_only", "scope", "one_tenant", "priority", "remote_task", "new_queue"})
"""The codes of refusals for lack of rights."""
BURST, RECOVERY_S = 20, 60.0
"""Of each credential, so many are recorded at once, then one per minute."""
TOTAL_BURST, TOTAL_RECOVERY_S = 200, 10.0
"""Of all credentials together; 10 s are 8,640 entries a day."""


class RefusalRecorder:
    """Records refused requests. An entry says how many of the same credential weren't recorded before it."""

    def __init__(self, audit: AuditControl, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._by_credential = Throttle(BURST, RECOVERY_S, clock)
        self._of_all = Throttle(TOTAL_BURST, TOTAL_RECOVERY_S, clock)
        self._unrecorded: Counter[str] = Counter()
        self._lock = threading.Lock()

    def record(self, principal: Principal, via: Via, request: str, client: str | None, error: Exception) -> None:
        """Record a request, if it was refused for lack of rights and hasn't been too often. Blocks."""
        if not isinstance(error, RequestError) or error.code not in CODES:
            return
        credential = principal.stream_keys[0]
        with self._lock:
            if self._by_credential.pause_s(credential) or self._of_all.pause_s(""):
                if len(self._unrecorded) >= MAX_CLIENTS:
                    self._unrecorded.clear()
                self._unrecorded[credential] += 1
                return
            self._by_credential.record(credential)
            self._of_all.record("")
            unrecorded = self._unrecorded.pop(credential, None)
        with suppress(StoreError), acting(principal.by, via, client, principal.tenant):  # the answer is an error anyway
            subject = "".join(each if each.isprintable() else "?" for each in request)
            with self._audit.record("refused request", subject, error=error.detail, unrecorded=unrecorded) as entry:
                entry.outcome = "refused"


async def record_refusal(
    context: SiteContext, principal: Principal | None, via: Via, request: str, client: str | None, error: Exception
) -> None:
    """Record a request that was refused, without blocking the event loop."""
    if principal is not None and isinstance(error, RequestError) and error.code in CODES:
        await context.threads.run(context.refusals.record, principal, via, request, client, error)
