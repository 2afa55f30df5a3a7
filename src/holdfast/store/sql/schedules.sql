-- name: read_clock
-- Read the time by which everything is decided.
select {now}

-- name: lock_declared
-- Lock the schedules and triggers of an app, and those of other apps with the same names.
select name, app, kind, timing, rules, template, orphaned from {schema}schedules
where app = :app or name {among(:rows, name text)}
order by name {lock}

-- name: add_schedules
-- Insert schedules and triggers; those that another worker has just added stay as they are.
insert into {schema}schedules (name, kind, app, queue, task, timing, rules, template, next_at, declared_at)
select each.name, each.kind, each.app, each.queue, each.task, each.timing, each.rules, each.template, each.next_at, {now}
from {each(:rows, name text, kind text, app text, queue text, task text, timing text, rules text, template text, next_at bigint)}
where true
on conflict do nothing

-- name: update_schedules
-- Replace declarations. If the timing is unchanged (moved = 0), the next slot stays.
update {schema}schedules set kind = each.kind, app = each.app, queue = each.queue, task = each.task, timing = each.timing,
    rules = each.rules, template = each.template, orphaned = 0, declared_at = {now},
    next_at = case when each.moved = 1 then each.next_at else {schema}schedules.next_at end
from {each(:rows, name text, kind text, app text, queue text, task text, timing text, rules text, template text, next_at bigint, moved int)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: orphan_schedules
-- Mark schedules and triggers that disappeared from their app's code: they stay, but create nothing.
update {schema}schedules set orphaned = 1 where name {among(:rows, name text)}

-- name: time_to_next_slot
-- Read when the next slot of any schedule is due, and the time. Takes no lock.
select min(next_at), {now} from {schema}schedules where kind = 'schedule' and paused = 0 and orphaned = 0

-- name: pick_due_schedules
-- Pick due schedules, each for one worker at a time: the first ones, or those behind a known one.
select name, queue, task, timing, rules, template, next_at, {now} from {schema}schedules
where kind = 'schedule' and paused = 0 and orphaned = 0 and next_at <= {now} and (next_at, name) > (cast(:at as bigint), :behind)
order by next_at, name limit 50 {lock_skip_locked}

-- name: find_fired_slots
-- Find those of these slots that created a run before. The schedules are locked.
select s.schedule, s.slot from {each(:rows, schedule text, slot bigint)}
join {schema}slots s on s.schedule = each.schedule and s.slot = each.slot
where s.schedule {among(:rows, schedule text)} and s.asked = 0

-- name: find_busy_schedules
-- Find those of these schedules that have unfinished runs.
select distinct s.schedule from {schema}slots s join {schema}runs r on r.id = s.run
where s.schedule {among(:rows, name text)} and r.finished_at is null

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

-- name: pause_schedules
-- Pause schedules and triggers; return those that weren't paused.
update {schema}schedules set paused = 1 where name {among(:rows, name text)} and paused = 0
returning name

-- name: lock_schedules
-- Lock schedules and triggers by name.
select name, kind, timing, rules, template, {now} from {schema}schedules where name {among(:rows, name text)}
order by name {lock}

-- name: lock_paused_schedules
-- Lock those of these schedules and triggers that are paused.
select name, kind, timing, rules, template, {now} from {schema}schedules where name {among(:rows, name text)} and paused = 1
order by name {lock}

-- name: resume_schedules
-- Resume schedules and triggers at their next time.
update {schema}schedules set paused = 0, next_at = each.next_at
from {each(:rows, name text, next_at bigint)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: list_schedules
-- List all schedules and triggers, with the last run or poll of each.
select s.name, s.kind, s.app, s.task, s.timing, s.rules, s.next_at, s.paused, s.orphaned, s.passed_at, l.slot, l.run, r.state,
    p.at, p.found, p.made, p.error
from {schema}schedules s
left join {schema}slots l on l.id = (select max(x.id) from {schema}slots x where x.schedule = s.name)
left join {schema}shown_runs r on r.id = l.run
left join {schema}polls p on p.id = (select max(x.id) from {schema}polls x where x.trigger_name = s.name)
order by s.name

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
