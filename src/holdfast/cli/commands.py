"""All commands: importing their modules puts them into the group. What is heavy they import when they are called."""

from holdfast.cli import (
    acting,
    check,
    completion,
    dashboard,
    demo,
    doctor,
    graphs,
    queues,
    runs,
    schedules,
    stats,
    steering,
    tasks,
    upkeep,
    why,
    worker,
)
from holdfast.cli.root import holdfast

__all__ = [
    "acting",
    "check",
    "completion",
    "dashboard",
    "demo",
    "doctor",
    "graphs",
    "holdfast",
    "queues",
    "runs",
    "schedules",
    "stats",
    "steering",
    "tasks",
    "upkeep",
    "why",
    "worker",
]
