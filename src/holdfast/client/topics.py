"""Topics for applications: publish messages, and declare which tasks subscribe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from typing import Any

from holdfast.database.caller_connection import CallerConnection
from holdfast.errors import BadArguments, ConfigError
from holdfast.model.topics import Published, new_message
from holdfast.store import NewRun, Store
from holdfast.store.topics import DeclaredSubscription
from holdfast.task.registry import Registry
from holdfast.task.scope import refuse_in_body
from holdfast.task.signature import Signature
from holdfast.task.task import NO_OPTIONS, Request, Task


class TopicClient:
    """Publishes messages. `subscriptions` returns the app's name and what its code declares."""

    def __init__(
        self, store: Store, registry: Registry, subscriptions: Callable[[], tuple[str, list[DeclaredSubscription]]]
    ) -> None:
        self._store = store
        self._registry = registry
        self._subscriptions = subscriptions
        self._declared: set[str] = set()

    def publish(
        self, topic: str, payload: Any, key: str | None, tenant: str | None, connection: CallerConnection | None
    ) -> Published:
        """Publish a message. Stores subscriptions of this process's code before, if no worker has started yet."""
        refuse_in_body("publish", "use ctx.publish, or call it inside a step")
        message = new_message(topic, payload, key, tenant)
        self._declare()
        return self._store.topics.publish(message, connection)

    def _declare(self) -> None:
        if all(name in self._declared for name in subscribing_tasks(self._registry)):
            return
        app, declared = self._subscriptions()
        self._store.topics.declare_new(app, declared)
        if not self._store.database.in_user_transaction():  # The caller may roll back.
            self._declared.update(each.name for each in declared)


def subscribing_tasks(registry: Registry) -> Iterable[str]:
    """Return the names of the tasks that subscribe to topics."""
    return [task.name for task in registry if task.declaration.topics]


def declared_subscriptions(registry: Registry, new_run: Callable[..., NewRun]) -> list[DeclaredSubscription]:
    """Return the subscriptions of an app's code as they are stored."""
    return [
        DeclaredSubscription(task.name, task.declaration.topics, _template(task, new_run))
        for task in registry
        if task.declaration.topics
    ]


def _template(task: Task[..., Any], new_run: Callable[..., NewRun]) -> NewRun:
    """Return the row from which the run of each message is created. It belongs to no trace."""
    request: Request[Any] = Request(task.declaration, task.signature, "{}", NO_OPTIONS)
    pending = task.signature.parameter_names if isinstance(task.signature, Signature) else ()
    try:
        return Context().run(partial(new_run, request, pending, pack=False))
    except BadArguments as error:
        raise ConfigError(
            f"task {task.name} has on=, so the key and the cost of its limits can't depend on the message: {error}"
        ) from error
