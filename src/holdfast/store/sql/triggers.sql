-- name: next_poll
-- How many microseconds until one of these triggers may be polled. A poll that was never ended, because its worker died, is made up for when
-- its time is over. Takes no lock.
select min(coalesce(poll_until, next_at)) - {now} from {schema}schedules
where kind = 'trigger' and name {among(:rows, name text)} and paused = 0 and orphaned = 0

-- name: take_triggers
-- Triggers that are due become this poller's, for as long as each poll may take. Answers those, with the number of the poll.
with due as materialized (
    select name from {schema}schedules
    where kind = 'trigger' and name {among(:rows, name text)} and paused = 0 and orphaned = 0
    and coalesce(poll_until, next_at) <= {now}
    order by name {lock_free}
)
update {schema}schedules set poller = :poller, poll_until = {now} + each.lease, polls = polls + 1, next_at = {now} + each.every
from {each(:rows, name text, lease bigint, every bigint)}
where {schema}schedules.name {among(due, name)} and {schema}schedules.name = each.name
returning {schema}schedules.name, polls

-- name: end_poll
-- A poll is over, if it is still this one's: others may have taken the trigger when its time was over. One that was broken off (again = 1)
-- may be taken up at once.
update {schema}schedules set poller = null, poll_until = null, next_at = case when cast(:again as int) = 1 then {now} else next_at end
where name = :name and poller = :poller and polls = cast(:number as bigint)
returning name

-- name: add_poll
-- What came of a poll.
insert into {schema}polls (trigger_name, at, took, found, made, error)
values (:name, {now}, cast(:took as bigint), cast(:found as int), cast(:made as int), cast(:error as text))

-- name: trim_polls
-- Of a trigger the last polls stay.
delete from {schema}polls where trigger_name = :name and id <= (
    select p.id from {schema}polls p where p.trigger_name = :name order by p.id desc limit 1 offset 20
)

-- name: last_polls
-- The last polls of a trigger, newest first.
select at, took, found, made, error from {schema}polls where trigger_name = :name order by id desc
