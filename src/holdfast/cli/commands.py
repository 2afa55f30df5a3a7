"""All commands: importing their modules puts them into the group. What is heavy they import when they are called."""

from holdfast.cli import completion, demo, queues, runs, tasks, upkeep, worker
from holdfast.cli.root import holdfast

__all__ = ["completion", "demo", "holdfast", "queues", "runs", "tasks", "upkeep", "worker"]
