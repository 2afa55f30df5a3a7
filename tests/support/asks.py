"""Ask runs in tests: send an ask without waiting for its answer."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from holdfast import Run


def send_ask(run: Run[Any], name: str, payload: Any = None, key: str | None = None) -> str:
    """Send an ask and return its key."""
    return run._client.interaction.send_ask(run.id, run.task, name, payload, key).key


def ask_in_thread(run: Run[Any], name: str, payload: Any = None, **options: Any) -> Future[Any]:
    """Ask in a thread of its own; return the future of the reply."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(run.ask, name, payload, **options)
    finally:
        pool.shutdown(wait=False)
