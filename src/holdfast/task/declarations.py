"""What an application declares beside its tasks: limits, budgets, queues and executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from decimal import Decimal
from typing import Literal

from holdfast.model.clock import Duration
from holdfast.task.registry import Registry


class Declarations:
    """The declarations of an application, a base class of `Holdfast`."""

    registry: Registry

    def limit(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        by: str | Callable[..., object] | None = None,
        cost: str | float | Callable[..., float] | None = None,
    ) -> None:
        """Declare a limit that applies across all workers.

        Tasks refer to it with `limits=[name]`, steps with `ctx.options(limits=[name]).step(…)`.

        Args:
            name: The limit's name.
            concurrency: How many runs or steps may execute at the same time.
            rate: How many runs or steps may start per period, like `"100/min"`; with `cost`, how much they may cost.
            by: Count separately per value: the name or dotted path of an argument, or a function of the arguments.
                Evaluated at enqueue, or when a step with the limit is called.
            cost: How much a start counts against the rate: the name or dotted path of an argument, a number, or a
                function of the arguments. Evaluated like `by`. Fractions are rounded up.
        """
        self.registry.limits.declare(name, concurrency, rate, by, cost)

    def budget(
        self,
        name: str,
        *,
        limit: Decimal | float,
        per: Literal["run", "tree", "tenant"] = "run",
        window: Duration | None = None,
        on_exceeded: Literal["wait", "fail"] = "wait",
    ) -> None:
        """Declare a budget: how much durable functions may spend with `ctx.spend(name, amount)`.

        Args:
            name: The budget's name, such as `"usd"` or `"tokens"`.
            limit: What may be spent, from 0 to 999,999,999, with up to nine decimal places.
            per: What shares the limit: each `"run"`, each `"tree"` (a run with its children), or each `"tenant"`.
            window: Start again from 0 in each window of this length, such as `timedelta(days=1)`: windows begin at
                multiples of their length since 1970, so days begin at midnight UTC.
            on_exceeded: What happens to a run that has spent more: it waits until the budget is raised or the window
                ends, or `ctx.spend` raises `BudgetExceeded`.
        """
        self.registry.budgets.declare(name, limit, per, window, on_exceeded)

    def queue(
        self,
        name: str,
        *,
        fair: bool = False,
        weights: Mapping[str, int] | None = None,
        age_priority: Duration | None = None,
    ) -> None:
        """Configure a queue.

        Applies to runs that are enqueued by code with this declaration.

        Args:
            name: The queue's name.
            fair: Claim runs round-robin by tenant, so that a tenant with a million runs doesn't delay the others.
            weights: How many runs of a tenant are claimed per round. Defaults to 1.
            age_priority: Each interval of this length that a run has waited counts like one more priority, so that runs
                of a low priority start even if there is always one of a higher priority. Not with `fair`.
        """
        self.registry.serve(name, fair, weights, age_priority)

    def executor(self, name: str, factory: Callable[[], Executor]) -> None:
        """Declare an executor, in which tasks and steps with `run_in=name` run: a pool of processes, or a cluster.

        Declare it before the tasks that use it.

        Args:
            name: The executor's name.
            factory: Returns a `concurrent.futures.Executor`. Each worker calls it when the first task or step needs it,
                and again when the executor is broken, such as a pool whose process has died. The worker shuts the
                executor down when it stops.

        Example:
            ```python
            app.executor("gpu", lambda: DaskExecutor("tcp://scheduler:8786", resources={"GPU": 1}))

            @app.task(run_in="gpu")
            def train(model: str) -> float: ...
            ```
        """
        self.registry.declare_executor(name, factory)
