-- name: touch_events
-- Makes rows for events that have none yet, so that there is something to lock: a wait can't miss an emit, nor an emit a wait.
insert into {schema}events (target, tenant, name, touched_at)
select each.target, each.tenant, each.name, {now} from {each(:rows, target text, tenant text, name text)} order by each.target
on conflict do nothing

-- name: lock_events
-- Locks events in order.
select target from {schema}events where target {among(:rows, target text)} order by target {lock}

-- name: emitted_events
-- Which of the locked events have been emitted. A statement of its own: the lock may have been waited for.
select target, payload from {schema}events where target {among(:rows, target text)} and emitted_at is not null

-- name: emitted_by
-- Which call emitted an event.
select emitted_by from {schema}events where target = :target

-- name: event_trace
-- The trace context of whoever emitted an event.
select trace from {schema}events where target = :target

-- name: emit_events
-- The first emit of an event wins.
update {schema}events set payload = each.payload, emitted_at = {now}, emitted_by = each.emitted_by, touched_at = {now}, more = each.more, trace = each.trace
from {each(:rows, target text, payload text, more smallint, emitted_by text, trace text)}
where {schema}events.target {matching(:rows, target text)} and {schema}events.target = each.target and emitted_at is null
returning {schema}events.target

-- name: find_waiters
-- Who waits for these events: one more than are woken at once, so that one can see whether there are more.
select w.run, w.generation, w.key, w.target from {schema}waits w
where w.target {among(:rows, target text)} and w.kind = 'event' and w.outcome is null
order by w.target, w.since limit 501

-- name: pick_events
-- Emitted events that may still have waiters.
select target, payload from {schema}events where more = 1 order by target limit 10 {lock_free}

-- name: settle_events
-- All waiters of these events have been woken.
update {schema}events set more = 0 where target {among(:rows, target text)}

-- name: old_events
-- Events that nobody touched for so long, in small batches.
select target from {schema}events where touched_at <= {now} - cast(:age as bigint)
order by touched_at limit 500 {lock_free}

-- name: prune_events
-- Those of these events that nobody waits for. (A subquery with a limit stays what it is; not exists may become a walk over all waits.)
delete from {schema}events where target {among(:rows, target text)}
and (select 1 from {schema}waits w where w.target = {schema}events.target and w.kind = 'event' and w.outcome is null limit 1) is null

-- name: keep_events
-- Events that are still waited for are looked at again after as long a time.
update {schema}events set touched_at = {now} where target {among(:rows, target text)}
