"""Register every command: importing a module adds its commands to the group."""

from holdfast.cli import (  # noqa: F401
    actions,
    budgets,
    check,
    completion,
    dashboard,
    demo,
    events,
    gates,
    interaction,
    logs,
    maintenance,
    mcp,
    queues,
    runs,
    schedules,
    stats,
    tasks,
    tokens,
    topics,
    worker,
)
from holdfast.cli.root import holdfast

__all__ = ["holdfast"]
