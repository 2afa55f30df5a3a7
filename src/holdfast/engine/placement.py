"""Which queues a worker serves, and with how many slots each, as users write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.errors import ConfigError
from holdfast.model.names import check_queue

DEFAULT_CONCURRENCY = 100
MAX_CONCURRENCY = 10_000


class ServedQueues(NamedTuple):
    """The queues of a worker; None: all. `slots`: of the queues that have their own. `concurrency`: all slots."""

    names: tuple[str, ...] | None
    slots: Mapping[str, int]
    concurrency: int


def check_queues(queues: Sequence[str] | Mapping[str, int | None] | None, concurrency: int | None) -> ServedQueues:
    """Check the queues of a worker and compute its slots.

    Queues without slots of their own share `concurrency` slots.
    """
    shared = DEFAULT_CONCURRENCY if concurrency is None else check_int(concurrency, "concurrency", 1, MAX_CONCURRENCY)
    if queues is None:
        return ServedQueues(None, {}, shared)
    if isinstance(queues, str) or not queues:
        raise ConfigError(f"queues must be a list of names, or None for all queues, not {queues!r}")
    names = tuple(check_queue(queue, "a queue") for queue in queues)
    slots: dict[str, int] = {}
    if isinstance(queues, Mapping):
        given = {queue: own for queue, own in queues.items() if own is not None}
        slots = {
            queue: check_int(own, f"queues: the slots of {queue}", 1, MAX_CONCURRENCY) for queue, own in given.items()
        }
    if slots.keys() == set(names) and concurrency is not None:
        raise ConfigError(
            "concurrency is shared by queues without slots of their own, and each of these queues has its own: remove"
            " concurrency, or the slots of a queue"
        )
    total = sum(slots.values()) + (0 if slots.keys() == set(names) else shared)
    return ServedQueues(names, slots, check_int(total, "the sum of all slots", 1, MAX_CONCURRENCY))


def check_int(value: int, name: str, least: int, most: int | None = None) -> int:
    """Return a number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise ConfigError(f"{name} must be an integer {allowed}, not {value!r}")
    return value
