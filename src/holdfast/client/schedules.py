"""`Schedules`: create, change, inspect and delete schedules at run time, from `app.schedules`."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack
from uuid import UUID

import msgspec

from holdfast.client.handle import Run
from holdfast.errors import ConfigError
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import time_to_micros
from holdfast.model.names import actor_or_user, check_name, quoted
from holdfast.model.payloads import schedule_context
from holdfast.model.schedule import ScheduleDetails, ScheduleInfo, ScheduleSync
from holdfast.store import NewRun
from holdfast.store.schedule_definitions import DeclaredSchedule, ScheduleRules
from holdfast.store.schedule_reader import ScheduleReader
from holdfast.task.registry import Registry
from holdfast.task.schedule_registry import (
    ScheduleRegistry,
    ScheduleSettings,
    ScheduleTiming,
    checked_request,
    checked_settings,
    merged_settings,
)
from holdfast.task.scope import refuse_in_body, reject_in_event_loop
from holdfast.task.task import Request, Task

if TYPE_CHECKING:
    from holdfast.client.client import Client

T = TypeVar("T")


class Schedules:
    """The schedules of the database, from `app.schedules`. Changes take effect on all workers within a second.

    A schedule that is created here lives in the database until it is deleted. Schedules that code declares with
    `app.schedule` can be paused, resumed, run and backfilled here; their definition changes with the code. Methods that
    start with `a` are awaitable.

    Example:
        ```python
        app.schedules.create("report-7", report.request(7), cron="0 8 * * *", tz="Europe/Oslo")
        app.schedules.update("report-7", cron="0 9 * * *")
        app.schedules.pause("report-7")
        app.schedules.delete("report-7")
        ```
    """

    def __init__(self, client: Client, registry: ScheduleRegistry, tasks: Registry) -> None:
        self._client = client
        self._registry = registry
        self._tasks = tasks

    def create(
        self,
        name: str,
        task: Task[..., Any] | Request[Any],
        /,
        *,
        args: tuple[Any, ...] = (),
        paused: bool = False,
        by: str | None = None,
        **settings: Unpack[ScheduleSettings],
    ) -> ScheduleInfo:
        """Create a schedule. If an equal one exists, nothing changes.

        Args:
            name: The schedule's name, unique in the database.
            task: A task, or a request (`task.request(…)`) with arguments and options.
            args: The arguments, if `task` is a task.
            paused: Whether it starts paused.
            by: Who creates it. Defaults to the user of this process.
            **settings: `cron` or `every`, `tz`, `catch_up`, `start`, `end`, `jitter` and `overlap`, as in
                `app.schedule`.

        Raises:
            ConfigError: A setting is invalid, or another schedule has this name.
        """
        reject_in_event_loop("create")
        return self._create(name, task, args, paused, by, settings)

    async def acreate(
        self,
        name: str,
        task: Task[..., Any] | Request[Any],
        /,
        *,
        args: tuple[Any, ...] = (),
        paused: bool = False,
        by: str | None = None,
        **settings: Unpack[ScheduleSettings],
    ) -> ScheduleInfo:
        """Create a schedule. The awaitable form of `create`."""
        return await run_in_thread(self._create, name, task, args, paused, by, settings)

    def update(
        self,
        name: str,
        task: Task[..., Any] | Request[Any] | None = None,
        /,
        *,
        args: tuple[Any, ...] | None = None,
        by: str | None = None,
        **settings: Unpack[ScheduleSettings],
    ) -> ScheduleInfo:
        """Change a schedule that was created at run time. What isn't given stays as it is.

        With `args` and no task, the task and its options stay.

        With a new timing, slots are computed again from now; otherwise the next slot stays. No slot gets a second run.

        Raises:
            ConfigError: A setting is invalid, there is no such schedule, or code declares it.
        """
        reject_in_event_loop("update")
        return self._update(name, task, args, by, settings)

    async def aupdate(
        self,
        name: str,
        task: Task[..., Any] | Request[Any] | None = None,
        /,
        *,
        args: tuple[Any, ...] | None = None,
        by: str | None = None,
        **settings: Unpack[ScheduleSettings],
    ) -> ScheduleInfo:
        """Change a schedule. The awaitable form of `update`."""
        return await run_in_thread(self._update, name, task, args, by, settings)

    def get(self, name: str) -> ScheduleDetails:
        """Return a schedule with its next slots, its recent runs and its recent changes."""
        reject_in_event_loop("get")
        return self._reader.details(name)

    async def aget(self, name: str) -> ScheduleDetails:
        """Return a schedule. The awaitable form of `get`."""
        return await run_in_thread(self._reader.details, name)

    def list(self) -> builtins.list[ScheduleInfo]:
        """List all schedules and triggers by name."""
        reject_in_event_loop("list")
        return self._reader.list()

    async def alist(self) -> builtins.list[ScheduleInfo]:
        """List all schedules and triggers. The awaitable form of `list`."""
        return await run_in_thread(self._reader.list)

    def pause(self, name: str, *, by: str | None = None) -> bool:
        """Pause a schedule: slots that pass create no runs. Unfinished runs continue. False if it was paused."""
        reject_in_event_loop("pause")
        return self._pause(name, by)

    async def apause(self, name: str, *, by: str | None = None) -> bool:
        """Pause a schedule. The awaitable form of `pause`."""
        return await run_in_thread(self._pause, name, by)

    def resume(self, name: str, *, by: str | None = None) -> bool:
        """Resume a schedule with its next slot. False if it wasn't paused."""
        reject_in_event_loop("resume")
        return self._resume(name, by)

    async def aresume(self, name: str, *, by: str | None = None) -> bool:
        """Resume a schedule. The awaitable form of `resume`."""
        return await run_in_thread(self._resume, name, by)

    def run(self, name: str, *, by: str | None = None) -> Run[Any]:
        """Create a run of a schedule now, also if it is paused."""
        reject_in_event_loop("run")
        return self._run(name, by)

    async def arun(self, name: str, *, by: str | None = None) -> Run[Any]:
        """Create a run of a schedule now. The awaitable form of `run`."""
        return await run_in_thread(self._run, name, by)

    def backfill(self, name: str, start: datetime, end: datetime, *, by: str | None = None) -> builtins.list[Run[Any]]:
        """Create a run for each slot from `start` to `end`, both inclusive, that has none, and return them.

        A repeat creates no second run for a slot. `overlap` doesn't apply: all runs are created at once.
        """
        reject_in_event_loop("backfill")
        return self._backfill(name, start, end, by)

    async def abackfill(
        self, name: str, start: datetime, end: datetime, *, by: str | None = None
    ) -> builtins.list[Run[Any]]:
        """Create runs for past slots. The awaitable form of `backfill`."""
        return await run_in_thread(self._backfill, name, start, end, by)

    def delete(self, name: str) -> None:
        """Delete a schedule that was created at run time, or that no code declares any more. Its runs stay."""
        reject_in_event_loop("delete")
        self._delete(name)

    async def adelete(self, name: str) -> None:
        """Delete a schedule. The awaitable form of `delete`."""
        await run_in_thread(self._delete, name)

    def declare(self) -> ScheduleSync:
        """Store the schedules and triggers that this code declares, as a worker does when it starts.

        Running workers then create the runs of new schedules, whose tasks they must know.
        """
        reject_in_event_loop("declare")
        return self._declare()

    async def adeclare(self) -> ScheduleSync:
        """Store the schedules and triggers that this code declares. The awaitable form of `declare`."""
        return await run_in_thread(self._declare)

    # Blocking implementations

    @property
    def _reader(self) -> ScheduleReader:
        return ScheduleReader(self._client.store)

    def _template(self, name: str, request: Request[Any]) -> NewRun:
        """Return the row from which runs are created. Unlike a declared one, it is packed: nobody compares it."""
        self._client.creator.declare_limits()
        return self._packed(name, request)

    def _packed(self, name: str, request: Request[Any]) -> NewRun:
        from holdfast.engine.loops.scheduler import schedule_template  # loads the engine

        template = schedule_template(request, self._client.new_run)
        context = schedule_context(template.tenant, name)
        template.args = self._client.pack(template.args, context, f"the arguments of task {template.task}")
        return template

    def _create(
        self, name: str, task: Any, args: tuple[Any, ...], paused: bool, by: str | None, settings: ScheduleSettings
    ) -> ScheduleInfo:
        refuse_in_body("schedules.create", "call it inside a step")
        checked = checked_settings(name, settings)
        template = self._template(name, checked_request(name, task, args))
        schedule = DeclaredSchedule(name, checked.timing, _rules(checked, template), template)
        self._client.store.schedules.create(schedule, actor_or_user(by), paused=paused)
        return self._reader.info(name)

    def _update(
        self, name: str, task: Any, args: tuple[Any, ...] | None, by: str | None, settings: ScheduleSettings
    ) -> ScheduleInfo:
        refuse_in_body("schedules.update", "call it inside a step")
        template = None if task is None else self._template(name, checked_request(name, task, args or ()))
        if args is not None:
            self._client.creator.declare_limits()

        def change(current: DeclaredSchedule) -> DeclaredSchedule:
            rules = current.rules
            known = ScheduleTiming(current.timing, rules.catch_up, rules.overlap, rules.jitter)
            checked = checked_settings(name, merged_settings(known, settings))
            run = template or current.template
            assert run is not None
            if template is None and args is not None:
                run = self._with_arguments(name, run, args)
            return DeclaredSchedule(name, checked.timing, _rules(checked, run), run)

        self._reader.check([name], readable=True)
        self._client.store.schedules.update(name, change, actor_or_user(by), template)
        return self._reader.info(name)

    def _with_arguments(self, name: str, template: NewRun, args: tuple[Any, ...]) -> NewRun:
        """Return a template with other arguments, and the limits that depend on them. Does no I/O."""
        task = self._tasks.get(template.task).options(tenant=template.tenant)
        new = self._packed(name, task.request(*args))
        return msgspec.structs.replace(template, args=new.args, limits=new.limits)

    def _pause(self, name: str, by: str | None) -> bool:
        return bool(self._client.store.schedules.pause(self._reader.check([name]), actor_or_user(by)))

    def _resume(self, name: str, by: str | None) -> bool:
        names = self._reader.check([name], readable=True)
        return bool(self._client.store.schedules.resume(names, actor_or_user(by)))

    def _run(self, name: str, by: str | None) -> Run[Any]:
        refuse_in_body("schedules.run", "call it inside a step")
        self._reader.check([name], readable=True)
        info = self._reader.info(name)
        if info.kind == "trigger":
            raise ConfigError(f"{quoted(name)} is a trigger: `holdfast schedules run` polls it")
        id = self._client.store.schedules.run_now(name, actor_or_user(by))
        return self._client.handle(UUID(id), str(info.task))

    def _backfill(self, name: str, start: datetime, end: datetime, by: str | None) -> builtins.list[Run[Any]]:
        refuse_in_body("schedules.backfill", "call it inside a step")
        self._reader.check([name], readable=True)
        task = str(self._reader.info(name).task)
        from_, until = time_to_micros(start, "start"), time_to_micros(end, "end")
        made = self._client.store.schedules.backfill(name, from_, until, actor_or_user(by))
        return [self._client.handle(UUID(each.run), task) for each in made]

    def _delete(self, name: str) -> None:
        self._reader.check([check_name(name, "a schedule")])
        self._client.store.schedules.delete(name)

    def _declare(self) -> ScheduleSync:
        from holdfast.engine.loops.scheduler import declared_schedules  # loads the engine

        self._tasks.load()
        declared = declared_schedules(self._registry, self._client.new_run)
        changes = self._client.store.schedules.declare(self._registry.app, declared)
        return ScheduleSync(changes.added, changes.changed, changes.orphaned, changes.removed, changes.refused)


def _rules(checked: ScheduleTiming, template: NewRun) -> ScheduleRules:
    is_packed = template.args[:1] == "~"
    rules = ScheduleRules(checked.catch_up, checked.overlap, checked.jitter)
    return msgspec.structs.replace(rules, packed=1) if is_packed else rules
