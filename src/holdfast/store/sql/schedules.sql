-- name: read_clock
-- Read the time by which everything is decided.
select {now}

-- name: read_declared
-- Read the schedules and triggers of an app, and all others with the same names, without a lock.
select name, app, kind, timing, rules, template, orphaned, orphaned_at, former, {now} from {schema}schedules
where app = :app or name {among(:rows, name text)}

-- name: lock_declared
-- Lock the schedules and triggers of an app, and all others with the same names.
select name, app, kind, timing, rules, template, orphaned, orphaned_at, former, {now} from {schema}schedules
where app = :app or name {among(:rows, name text)}
order by name {lock}

-- name: add_schedules
-- Insert schedules and triggers; those that another process has just added stay as they are.
insert into {schema}schedules (name, kind, app, queue, task, timing, rules, template, next_at, paused, actions, declared_at)
select each.name, each.kind, each.app, each.queue, each.task, each.timing, each.rules, each.template, each.next_at,
    coalesce(each.paused, 0), each.actions, {now}
from {each(:rows, name text, kind text, app text, queue text, task text, timing text, rules text, template text, next_at bigint, paused int, actions text)}
where true
on conflict do nothing
returning name

-- name: update_schedules
-- Replace the definitions of schedules and triggers. If the timing is unchanged (moved = 0), the next slot stays.
update {schema}schedules set kind = each.kind, app = each.app, queue = each.queue, task = each.task, timing = each.timing,
    rules = each.rules, template = each.template, orphaned = 0, orphaned_at = null, former = each.former, declared_at = {now},
    actions = coalesce(each.actions, {schema}schedules.actions),
    next_at = case when each.moved = 1 then each.next_at else {schema}schedules.next_at end,
    buffered = case when each.moved = 0 then {schema}schedules.buffered end
from {each(:rows, name text, kind text, app text, queue text, task text, timing text, rules text, template text, next_at bigint, moved int, former text, actions text)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: orphan_schedules
-- Mark schedules and triggers that disappeared from their app's code: they stay for a while, but create nothing.
update {schema}schedules set orphaned = 1, orphaned_at = {now} where name {among(:rows, name text)}

-- name: delete_schedules
-- Delete schedules and triggers. Their runs stay.
delete from {schema}schedules where name {among(:rows, name text)}

-- name: delete_slots
-- Delete the slots of deleted schedules.
delete from {schema}slots where schedule {among(:rows, name text)}

-- name: delete_polls
-- Delete the polls of deleted triggers.
delete from {schema}polls where trigger_name {among(:rows, name text)}

-- name: list_fenced_tenants
-- List the tenants whose new rows a fence refuses here, with the reason (decision 67).
select substr(name, 14), value from {schema}meta where substr(name, 1, 13) = 'tenant_fence:'

-- name: time_to_next_slot
-- Read when the next slot of any schedule is due, and the time. Takes no lock.
--
-- A buffered slot is due once no run of its schedule is unfinished or still executing.
select min(due.at), {now} from (
    select min(next_at) as at from {schema}schedules where kind = 'schedule' and paused = 0 and orphaned = 0
    union all
    select {now} from {schema}schedules b where b.buffered is not null and b.paused = 0 and b.orphaned = 0 and not exists (
        select 1 from {schema}slots s join {schema}runs r on r.id = s.run
        where s.schedule = b.name and (r.finished_at is null or r.session is not null)
    )
) due

-- name: pick_due_schedules
-- Pick due schedules, each for one worker at a time: the first ones, or those behind a known one.
select name, queue, task, timing, rules, template, next_at, buffered, {now} from {schema}schedules
where kind = 'schedule' and paused = 0 and orphaned = 0 and next_at <= {now} and (next_at, name) > (cast(:at as bigint), :behind)
order by next_at, name limit 50 {lock_skip_locked}

-- name: pick_buffered_schedules
-- Pick schedules with a buffered slot whose other runs have all ended, each for one worker at a time.
select b.name, b.queue, b.task, b.rules, b.template, b.buffered from {schema}schedules b
where b.buffered is not null and b.paused = 0 and b.orphaned = 0 and not exists (
    select 1 from {schema}slots s join {schema}runs r on r.id = s.run
    where s.schedule = b.name and (r.finished_at is null or r.session is not null)
)
order by b.name limit 50 {lock_skip_locked}

-- name: set_buffered_slots
-- Replace the buffered slots of schedules, or remove them (null).
update {schema}schedules set buffered = each.buffered
from {each(:rows, name text, buffered bigint)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: find_fired_slots
-- Find those of these slots that created a run before. The schedules are locked.
select s.schedule, s.slot from {each(:rows, schedule text, slot bigint)}
join {schema}slots s on s.schedule = each.schedule and s.slot = each.slot
where s.schedule {among(:rows, schedule text)} and s.asked = 0

-- name: find_busy_runs
-- Find the runs of these schedules that are unfinished, or ended but still executing.
select s.schedule, r.id from {schema}slots s join {schema}runs r on r.id = s.run
where s.schedule {among(:rows, name text)} and (r.finished_at is null or r.session is not null)

-- name: add_slots
-- Insert slots and the runs that they created.
insert into {schema}slots (schedule, slot, asked, run)
select each.schedule, each.slot, each.asked, cast(each.run as {uuid})
from {each(:rows, schedule text, slot bigint, asked int, run uuid)}
where true

-- name: advance_schedules
-- Advance schedules to their next slots.
update {schema}schedules set next_at = each.next_at, passed_at = coalesce(each.passed_at, {schema}schedules.passed_at)
from {each(:rows, name text, next_at bigint, passed_at bigint)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: trim_slots
-- Delete all but the last 100 slots of these schedules.
delete from {schema}slots where schedule {among(:rows, name text)} and id <= (
    select s.id from {schema}slots s where s.schedule = {schema}slots.schedule order by s.id desc limit 1 offset 100
)

-- name: lock_schedules
-- Lock schedules and triggers by name.
select name, kind, app, timing, rules, template, next_at, paused, orphaned, actions, {now} from {schema}schedules
where name {among(:rows, name text)}
order by name {lock}

-- name: pause_schedules
-- Pause locked schedules and triggers. A buffered slot is dropped, like those that pass meanwhile.
update {schema}schedules set paused = 1, buffered = null, actions = each.actions
from {each(:rows, name text, actions text)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: resume_schedules
-- Resume locked schedules and triggers at their next time.
update {schema}schedules set paused = 0, next_at = each.next_at, actions = each.actions
from {each(:rows, name text, next_at bigint, actions text)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: note_schedule_actions
-- Store who did what to locked schedules.
update {schema}schedules set actions = each.actions
from {each(:rows, name text, actions text)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: list_schedules
-- List all schedules and triggers, with the last run or poll of each.
select s.name, s.kind, s.app, s.task, s.timing, s.rules, s.next_at, s.paused, s.orphaned, s.passed_at, l.slot, l.run, r.state,
    p.at, p.found, p.made, p.error, s.orphaned_at, s.buffered
from {schema}schedules s
left join {schema}slots l on l.id = (select max(x.id) from {schema}slots x where x.schedule = s.name)
left join {schema}shown_runs r on r.id = l.run
left join {schema}polls p on p.id = (select max(x.id) from {schema}polls x where x.trigger_name = s.name)
order by s.name

-- name: find_schedules
-- Find schedules and triggers by name, with the columns of `list_schedules`.
select s.name, s.kind, s.app, s.task, s.timing, s.rules, s.next_at, s.paused, s.orphaned, s.passed_at, l.slot, l.run, r.state,
    p.at, p.found, p.made, p.error, s.orphaned_at, s.buffered
from {schema}schedules s
left join {schema}slots l on l.id = (select max(x.id) from {schema}slots x where x.schedule = s.name)
left join {schema}shown_runs r on r.id = l.run
left join {schema}polls p on p.id = (select max(x.id) from {schema}polls x where x.trigger_name = s.name)
where s.name {among(:rows, name text)}
order by s.name

-- name: read_schedule_actions
-- Read who changed a schedule, and its template.
select actions, template from {schema}schedules where name = :name

-- name: list_last_slots
-- List the last slots of a schedule, newest first, with the states of their runs.
select s.slot, s.asked, s.run, r.state
from {schema}slots s left join {schema}shown_runs r on r.id = s.run
where s.schedule = :name order by s.id desc

-- name: time_to_next_poll
-- Read when one of these triggers may be polled, and the time. Takes no lock.
--
-- A poll that never ended, because its worker died, is repeated when its lease expires.
select min(coalesce(poll_until, next_at)), {now} from {schema}schedules
where kind = 'trigger' and name {among(:rows, name text)} and paused = 0 and orphaned = 0

-- name: acquire_due_triggers
-- Acquire due triggers for this poller, for as long as each poll may take; return them with the number of the poll.
with due as materialized (
    select name from {schema}schedules
    where kind = 'trigger' and name {among(:rows, name text)} and paused = 0 and orphaned = 0
    and coalesce(poll_until, next_at) <= {now}
    order by name {lock_skip_locked}
)
update {schema}schedules set poller = :poller, poll_until = {now} + each.lease, polls = polls + 1, next_at = {now} + each.every
from {each(:rows, name text, lease bigint, every bigint)}
where {schema}schedules.name {among(due, name)} and {schema}schedules.name = each.name
returning {schema}schedules.name, polls

-- name: finish_poll
-- Release a trigger, unless another poller has acquired it after its lease expired. An interrupted poll (again = 1) is
-- due.
update {schema}schedules set poller = null, poll_until = null, next_at = case when cast(:again as int) = 1 then {now} else next_at end
where name = :name and poller = :poller and polls = cast(:number as bigint)
returning name

-- name: add_poll
-- Insert the outcome of a poll.
insert into {schema}polls (trigger_name, at, took, found, made, error)
values (:name, {now}, cast(:took as bigint), cast(:found as int), cast(:made as int), cast(:error as text))

-- name: trim_polls
-- Delete all but the last 20 polls of a trigger.
delete from {schema}polls where trigger_name = :name and id <= (
    select p.id from {schema}polls p where p.trigger_name = :name order by p.id desc limit 1 offset 20
)

-- name: list_last_polls
-- List the last polls of a trigger, newest first.
select at, took, found, made, error from {schema}polls where trigger_name = :name order by id desc
