"""Run tasks and steps on a Dask cluster: `app.executor("gpu", lambda: DaskExecutor("tcp://scheduler:8786"))`.

Needs `pip install "holdfast[dask]"`. A cancelled call is cancelled in the cluster. Dask can't interrupt a function that
already runs in one of its threads; the function ends early if it asks `holdfast.stop_requested()`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from holdfast.engine.remote_call import RemoteCall
from holdfast.errors import ExecutorLost
from holdfast.integrations.cluster_futures import ClusterFuture

try:
    from distributed import Client, KilledWorker, get_worker
except ImportError as error:
    raise ImportError('holdfast.integrations.dask needs distributed: pip install "holdfast[dask]"') from error

P = ParamSpec("P")
R = TypeVar("R")


class DaskExecutor(Executor):
    """An executor on a Dask cluster.

    Dask repeats a call whose worker dies; a call with which `distributed.scheduler.allowed-failures` workers have died
    raises `ExecutorLost`.

    Args:
        cluster: The address of the scheduler, or a `distributed.Client` of yours, which isn't closed.
        workers: The workers that may execute the calls; all by default.
        resources: The resources that a call takes on its worker, such as `{"GPU": 1}`.
    """

    def __init__(
        self, cluster: str | Client, *, workers: list[str] | None = None, resources: dict[str, float] | None = None
    ) -> None:
        self._owns_client = isinstance(cluster, str)
        client: Any = Client(cluster, set_as_default=False) if self._owns_client else cluster
        self._client = client
        given = {"workers": workers, "resources": resources}
        options = {name: value for name, value in given.items() if value is not None}
        self._executor = client.get_executor(pure=False, **options)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit a call to the cluster."""
        if self._client.status == "closed":
            raise BrokenExecutor("the connection to the Dask scheduler is closed")
        key = f"holdfast-{uuid.uuid4().hex}"
        inner: Future[Any] = self._executor.submit(_run, key, partial(fn, *args, **kwargs), key=key)
        return ClusterFuture(inner, inner.cancel, _translated)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - Dask cancels them
        """Cancel unfinished calls, unless `wait` is set, and close the client if this executor has opened it."""
        self._executor.shutdown(wait=wait)
        if self._owns_client:
            self._client.close()


def _translated(error: BaseException) -> BaseException:
    return ExecutorLost(str(error)) if isinstance(error, KilledWorker) else error


class _WorkerStopFlag:
    """The stop flag of a call on a Dask worker: set once the scheduler has cancelled the call."""

    def __init__(self, key: str) -> None:
        self._tasks = get_worker().state.tasks
        self._key = key

    @property
    def requested(self) -> bool:
        task = self._tasks.get(self._key)
        return task is None or task.state == "cancelled"


def _run(key: str, call: partial[Any]) -> Any:
    """Execute a call on a Dask worker."""
    if isinstance(call.func, RemoteCall):
        return call.func.with_stop_flag(_WorkerStopFlag(key))()
    return call()
