"""All commands: importing their modules puts them into the group. What is heavy they import when they are called."""

from holdfast.cli import check, completion, demo, queues, runs, schedules, steering, tasks, upkeep, worker
from holdfast.cli.root import holdfast

__all__ = [
    "check",
    "completion",
    "demo",
    "holdfast",
    "queues",
    "runs",
    "schedules",
    "steering",
    "tasks",
    "upkeep",
    "worker",
]
