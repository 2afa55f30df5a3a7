"""The futures of calls on a cluster, shared by the integrations with Dask and Ray."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any


class ClusterFuture(Future[Any]):
    """The outcome of a call on a cluster. Unlike a future of a thread, it can be cancelled while the call runs.

    Args:
        inner: The future of the cluster's own library.
        cancel: Cancels the call in the cluster.
        translate: Returns the exception to raise for one of the library.
    """

    def __init__(
        self,
        inner: Future[Any],
        cancel: Callable[[], object],
        translate: Callable[[BaseException], BaseException],
    ) -> None:
        super().__init__()
        self._cancel_call = cancel
        self._translate = translate
        inner.add_done_callback(self._finish)

    def cancel(self) -> bool:
        """Cancel the call. Return False if it has ended."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._cancel_call()
        return is_cancelled

    def _finish(self, inner: Future[Any]) -> None:
        if inner.cancelled():
            super().cancel()
            return
        error = inner.exception()
        with suppress(InvalidStateError):  # it was cancelled
            if error is None:
                self.set_result(inner.result())
            else:
                self.set_exception(self._translate(error))
