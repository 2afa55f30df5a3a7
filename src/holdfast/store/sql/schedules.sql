-- name: read_clock
-- The time by which everything is decided.
select {now}

-- name: hold_declared
-- The schedules and triggers of an app's code, and those of other apps that have the same names, locked.
select name, app, kind, timing, rules, template, orphaned from {schema}schedules
where app = :app or name {among(:rows, name text)}
order by name {lock}

-- name: add_schedules
-- New schedules and triggers; those that another worker has just added are left as they are.
insert into {schema}schedules (name, kind, app, queue, task, timing, rules, template, next_at, declared_at)
select each.name, each.kind, each.app, each.queue, each.task, each.timing, each.rules, each.template, each.next_at, {now}
from {each(:rows, name text, kind text, app text, queue text, task text, timing text, rules text, template text, next_at bigint)}
where true
on conflict do nothing

-- name: change_schedules
-- What the code says now replaces what it said before. Where the timing stays (moved = 0) so does the next slot.
update {schema}schedules set kind = each.kind, app = each.app, queue = each.queue, task = each.task, timing = each.timing,
    rules = each.rules, template = each.template, orphaned = 0, declared_at = {now},
    next_at = case when each.moved = 1 then each.next_at else {schema}schedules.next_at end
from {each(:rows, name text, kind text, app text, queue text, task text, timing text, rules text, template text, next_at bigint, moved int)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: orphan_schedules
-- What has disappeared from its app's code stays, and makes nothing any more.
update {schema}schedules set orphaned = 1 where name {among(:rows, name text)}

-- name: next_slot
-- How many microseconds until the next slot of any schedule. Takes no lock.
select min(next_at) - {now} from {schema}schedules where kind = 'schedule' and paused = 0 and orphaned = 0

-- name: pick_due_schedules
-- Schedules whose slot has come, each for one worker at a time: the first of them, or those behind one that is known.
select name, queue, task, timing, rules, template, next_at, {now} from {schema}schedules
where kind = 'schedule' and paused = 0 and orphaned = 0 and next_at <= {now} and (next_at, name) > (cast(:at as bigint), :behind)
order by next_at, name limit 50 {lock_free}

-- name: find_slots
-- Which of these slots have made a run before. Asked under the lock of their schedules.
select s.schedule, s.slot from {each(:rows, schedule text, slot bigint)}
join {schema}slots s on s.schedule = each.schedule and s.slot = each.slot
where s.schedule {among(:rows, schedule text)} and s.asked = 0

-- name: busy_schedules
-- Which of these schedules have unfinished runs.
select distinct s.schedule from {schema}slots s join {schema}runs r on r.id = s.run
where s.schedule {among(:rows, name text)} and r.finished_at is null

-- name: add_slots
-- Slots and the runs that they made.
insert into {schema}slots (schedule, slot, asked, run)
select each.schedule, each.slot, each.asked, cast(each.run as {uuid})
from {each(:rows, schedule text, slot bigint, asked int, run uuid)}
where true

-- name: move_schedules
-- Schedules go on to their next slots.
update {schema}schedules set next_at = each.next_at, passed_at = coalesce(each.passed_at, {schema}schedules.passed_at)
from {each(:rows, name text, next_at bigint, passed_at bigint)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: trim_slots
-- Of each of these schedules the last slots stay.
delete from {schema}slots where schedule {among(:rows, name text)} and id <= (
    select s.id from {schema}slots s where s.schedule = {schema}slots.schedule order by s.id desc limit 1 offset 100
)

-- name: pause_schedules
-- These make nothing until they are resumed. Answers those that weren't paused.
update {schema}schedules set paused = 1 where name {among(:rows, name text)} and paused = 0
returning name

-- name: hold_schedules
-- Schedules and triggers by name, locked.
select name, kind, timing, rules, template, {now} from {schema}schedules where name {among(:rows, name text)}
order by name {lock}

-- name: hold_paused
-- Those of these that are paused, locked.
select name, kind, timing, rules, template, {now} from {schema}schedules where name {among(:rows, name text)} and paused = 1
order by name {lock}

-- name: resume_schedules
-- These go on, with what comes next from now.
update {schema}schedules set paused = 0, next_at = each.next_at
from {each(:rows, name text, next_at bigint)}
where {schema}schedules.name {among(:rows, name text)} and {schema}schedules.name = each.name

-- name: list_schedules
-- All schedules and triggers, with the last run or the last poll of each.
select s.name, s.kind, s.app, s.task, s.timing, s.rules, s.next_at, s.paused, s.orphaned, s.passed_at, l.slot, l.run, r.state,
    p.at, p.found, p.made, p.error
from {schema}schedules s
left join {schema}slots l on l.id = (select max(x.id) from {schema}slots x where x.schedule = s.name)
left join {schema}shown_runs r on r.id = l.run
left join {schema}polls p on p.id = (select max(x.id) from {schema}polls x where x.trigger_name = s.name)
order by s.name

-- name: last_slots
-- The last slots of a schedule, newest first, and what became of their runs.
select s.slot, s.asked, s.run, r.state
from {schema}slots s left join {schema}shown_runs r on r.id = s.run
where s.schedule = :name order by s.id desc
