"""Run tasks and steps on a Ray cluster: `app.executor("gpu", lambda: RayExecutor("ray://head:10001", num_gpus=1))`.

Needs `pip install "holdfast[ray]"`. A cancelled call is killed with its process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from holdfast.errors import ExecutorLost
from holdfast.integrations.cluster_futures import ClusterFuture

try:
    import ray
    from ray import exceptions
except ImportError as error:
    raise ImportError('holdfast.integrations.ray needs ray: pip install "holdfast[ray]"') from error

P = ParamSpec("P")
R = TypeVar("R")

_LOST = (
    exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.LocalRayletDiedError,
    exceptions.ObjectLostError, exceptions.OutOfMemoryError, exceptions.RaySystemError,
)  # fmt: skip
"""What Ray raises if a process or a machine has died, and its own retries are exhausted."""


class RayExecutor(Executor):
    """An executor on a Ray cluster. Each call is a Ray task.

    Ray repeats a call whose process dies; after `max_retries` repetitions the call raises `ExecutorLost`.

    Args:
        address: The address of the cluster, as `ray.init` takes it, unless this process is connected already. By
            default, Ray starts a local cluster.
        **options: Options of the Ray task, such as `num_cpus`, `num_gpus`, `max_retries` or `runtime_env`.
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        self._owns_connection = not ray.is_initialized()
        if self._owns_connection:
            ray.init(address=address, logging_level="warning", log_to_driver=False)
        self._run = ray.remote(_run).options(**options)
        self._futures: WeakSet[Future[Any]] = WeakSet()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit a call to the cluster."""
        task = self._run.remote(partial(fn, *args, **kwargs))
        future = ClusterFuture(task.future(), partial(ray.cancel, task, force=True), _translated)
        self._futures.add(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel unfinished calls unless `wait` is set, and disconnect if this executor has connected."""
        if cancel_futures or not wait:
            for future in list(self._futures):
                future.cancel()
        if self._owns_connection:
            ray.shutdown()


def _run(call: Callable[[], Any]) -> Any:
    return call()


def _translated(error: BaseException) -> BaseException:
    if isinstance(error, exceptions.RayTaskError):
        cause = getattr(error, "cause", None)
        return cause if isinstance(cause, BaseException) else error
    return ExecutorLost(f"{type(error).__name__}: {error}") if isinstance(error, _LOST) else error
