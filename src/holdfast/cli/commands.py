"""Register every command: importing a module adds its commands to the group."""

from holdfast.cli import (  # noqa: F401
    actions,
    audit,
    backup,
    budgets,
    check,
    completion,
    dashboard,
    demo,
    events,
    find,
    gates,
    health,
    interaction,
    logs,
    maintenance,
    mcp,
    move,
    queues,
    runs,
    schedules,
    stats,
    tasks,
    tokens,
    top,
    topics,
    worker,
)
from holdfast.cli.root import holdfast

__all__ = ["holdfast"]
