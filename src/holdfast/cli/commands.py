"""All commands: importing their modules puts them into the group. What is heavy they import when they are called."""

from holdfast.cli import (
    bench,
    check,
    completion,
    demo,
    graphs,
    queues,
    runs,
    schedules,
    steering,
    tasks,
    upkeep,
    why,
    worker,
)
from holdfast.cli.root import holdfast

__all__ = [
    "bench",
    "check",
    "completion",
    "demo",
    "graphs",
    "holdfast",
    "queues",
    "runs",
    "schedules",
    "steering",
    "tasks",
    "upkeep",
    "why",
    "worker",
]
