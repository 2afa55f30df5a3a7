-- name: add_waits
-- Register waits. One that exists keeps its time: a retry doesn't extend a sleep.
insert into {schema}waits (run, generation, key, kind, target, eager, pending, due_at, since)
select cast(each.run as {uuid}), each.generation, each.key, each.kind, each.target, each.eager, each.pending,
    coalesce(each.due_at, {stamp} + each.delay), {stamp}
from {each(:rows, run uuid, generation int, key text, kind text, target text, eager smallint, pending int, due_at bigint, delay bigint)}
where true
on conflict do nothing
returning run, key, due_at - {stamp}

-- name: find_waits
-- Find those of these waits that exist, when they are due, and their outcomes.
select w.run, w.key, w.due_at - {now}, w.outcome, w.value
from {each(:rows, run uuid, generation int, key text)}
{lookup(waits w, w.run = each.run and w.generation = each.generation and w.key = each.key)}

-- name: delete_waits_by_key
-- Delete waits that were withdrawn or whose outcome is recorded, and return their outcomes.
delete from {schema}waits where {among_keys(waits, :rows, run uuid, generation int, key text)}
returning run, key, outcome

-- name: delete_timed_waits
-- Delete waits for events and messages that have a timeout and no other outcome, so that a retry starts the timeout anew.
--
-- coalesce keeps the planner from reading all due waits.
delete from {schema}waits where run {among(:rows, id uuid)} and kind in ('event', 'message') and due_at is not null
and coalesce(outcome, 'due') = 'due'

-- name: find_runs_with_due_waits
-- Find runs with a wait that is due, in small batches.
select w.run from {schema}waits w where w.outcome is null and w.due_at is not null and w.due_at <= {now}
order by w.due_at limit 500

-- name: resolve_due_waits
-- Resolve the due waits of these runs. coalesce keeps the planner from reading all due waits.
update {schema}waits set outcome = 'due', settled_at = {now}
where run {among(:rows, id uuid)} and outcome is null and coalesce(due_at, {now} + 1) <= {now}
returning run, key

-- name: resolve_waits
-- Resolve open waits of locked runs.
update {schema}waits set outcome = each.outcome, value = each.value, settled_at = {now}
from {each(:rows, run uuid, generation int, key text, outcome text, value text)}
{lookup(waits w, w.run = each.run and w.generation = each.generation and w.key = each.key)}
where {is_row(waits w, run generation key)} and {schema}waits.outcome is null
returning {schema}waits.run, {schema}waits.key

-- name: wake_runs
-- Make waiting runs with a resolved wait ready, behind runs that are ready already; they continue their attempt.
--
-- coalesce keeps the planner from reading all waiting runs.
update {schema}runs set state = 'ready', ready_at = {stamp}, turn = {next_turn({schema}runs, {stamp})}
where id {among(:rows, id uuid)} and coalesce(state, '') = 'waiting'
and (
    select 1 from {schema}waits w {indexed_by(holdfast_waits_resolved)}
    where w.run = {schema}runs.id and w.generation = {schema}runs.generation and w.outcome is not null limit 1
) = 1
returning id, {notify_workers}

-- name: create_event_rows
-- Create rows for events that have none, so that there is something to lock: no wait misses an emit, nor an emit a
-- wait.
insert into {schema}events (target, tenant, name, touched_at)
select each.target, each.tenant, each.name, {now} from {each(:rows, target text, tenant text, name text)} order by each.target
on conflict do nothing

-- name: lock_events
-- Lock events in order.
select target from {schema}events where target {among(:rows, target text)} order by target {lock}

-- name: read_emitted
-- Read which of the locked events were emitted. A statement of its own, because the lock may have been waited for.
select target, payload from {schema}events where target {among(:rows, target text)} and emitted_at is not null

-- name: read_emitter
-- Read which call emitted an event.
select emitted_by from {schema}events where target = :target

-- name: read_event_trace
-- Read the trace context of an event's emitter.
select trace from {schema}events where target = :target

-- name: emit_events
-- Emit events that were not emitted before: the first emit wins.
update {schema}events set payload = each.payload, emitted_at = {now}, emitted_by = each.emitted_by, touched_at = {now}, more = each.more, trace = each.trace
from {each(:rows, target text, payload text, more smallint, emitted_by text, trace text)}
where {schema}events.target {matching(:rows, target text)} and {schema}events.target = each.target and emitted_at is null
returning {schema}events.target

-- name: find_event_waiters
-- only: postgres
-- Find waiters of these events: one more than are woken at once, to see whether there are more. Without those that have
-- set the event aside.
--
-- By event, because the order of the index would be lost with a list of events: all waiters would be sorted for each
-- batch that is woken (bench: scale).
select w.run, w.generation, w.key, w.target from {each(:rows, target text)} cross join lateral (
    select x.run, x.generation, x.key, x.target, x.since from {schema}waits x
    where x.target = each.target and x.kind = 'event' and x.outcome is null and x.pending is null
    order by x.target, x.since limit 501
) w
order by w.target, w.since limit 501

-- name: find_event_waiters
-- only: sqlite
-- Find waiters of these events, as on PostgreSQL. SQLite reads a list of events in the order of the index.
select w.run, w.generation, w.key, w.target from {schema}waits w
where w.target {among(:rows, target text)} and w.kind = 'event' and w.outcome is null and w.pending is null
order by w.target, w.since limit 501

-- name: find_event_set_aside
-- Find the runs that have set a locked event aside.
select w.run from {schema}waits w
where w.target = :target and w.kind = 'event' and w.outcome is null and w.pending is not null

-- name: await_next_emit
-- Let runs that have set a locked event aside receive the next emit of it.
update {schema}waits set pending = null
where target = :target and kind = 'event' and outcome is null and pending is not null

-- name: forget_emit
-- Forget that a locked event was emitted.
update {schema}events set payload = null, emitted_at = null, emitted_by = null, trace = null, more = 0, touched_at = {now}
where target = :target

-- name: list_awaited_events
-- List events that runs wait for, those awaited for the longest time first, with the first run of each.
--
-- Of a bounded number of waits; the last column says how many were read. A run that failed or was cancelled keeps its
-- waits for a retry, but doesn't wait.
with open_waits as materialized (
    select w.target, w.since, w.run from {schema}waits w where w.kind = 'event' and w.outcome is null order by w.target limit 10000
), awaited as (
    select w.target, count(*) as waiters, min(w.since) as since
    from open_waits w join {schema}runs r on r.id = w.run and r.finished_at is null and r.ending is null
    group by w.target
)
select f.name, f.tenant, f.waiters, f.since, f.run, l.task, f.read
from (
    select e.name, e.tenant, a.waiters, a.since, a.target, (select count(*) from open_waits) as read,
        (
            select x.run from {schema}waits x join {schema}runs u on u.id = x.run and u.finished_at is null and u.ending is null
            where x.target = a.target and x.kind = 'event' and x.outcome is null
            order by x.since, x.run limit 1
        ) as run
    from awaited a join {schema}events e on e.target = a.target
    where (cast(:tenant as text) is null or e.tenant = :tenant)
    order by a.since, a.target limit cast(:size as bigint)
) f
join {schema}runs r on r.id = f.run join {schema}lanes l on l.id = r.lane
order by f.since, f.target

-- name: list_emitted_events
-- List events that were emitted, the newest first. Of a bounded number of events; the last column says how many.
with recent as materialized (
    select e.target, e.tenant, e.name, e.emitted_at, octet_length(e.payload) as bytes, e.touched_at
    from {schema}events e order by e.touched_at desc limit 10000
)
select target, name, tenant, emitted_at, bytes, (select count(*) from recent) from recent
where emitted_at is not null and (cast(:tenant as text) is null or tenant = :tenant)
order by emitted_at desc, target limit cast(:size as bigint)

-- name: find_events_named
-- Find events of a name, whatever their tenant, among those that were emitted or awaited last.
select e.target, e.tenant, e.emitted_at, octet_length(e.payload)
from (select * from {schema}events order by touched_at desc limit cast(:scan as bigint)) e
where e.name = :name and (cast(:tenant as text) is null or e.tenant = :tenant)
order by e.touched_at desc limit cast(:size as bigint)

-- name: read_event_payloads
-- Read the payloads of events.
select target, payload from {schema}events where target {among(:rows, target text)}

-- name: list_event_waiters
-- List the first unfinished runs that wait for events, in the order of their waits.
select w.target, w.run, l.task, w.since, w.due_at
from {schema}waits w join {schema}runs r on r.id = w.run join {schema}lanes l on l.id = r.lane
where w.target {among(:rows, target text)} and w.kind = 'event' and w.outcome is null
and r.finished_at is null and r.ending is null
order by w.since, w.run limit cast(:size as bigint)

-- name: pick_events_with_waiters
-- Pick emitted events that may still have waiters.
select target, payload from {schema}events where more = 1 order by target limit 10 {lock_skip_locked}

-- name: clear_more_waiters
-- Mark that all waiters of these events were woken.
update {schema}events set more = 0 where target {among(:rows, target text)}

-- name: add_message
-- Append a message or an ask to those of a locked run; `taken_by`: the wait that receives it at once.
insert into {schema}messages (run, n, topic, payload, sent_at, sent_by, ask, taken_by)
select cast(:run as {uuid}), 1 + coalesce((select max(m.n) from {schema}messages m where m.run = cast(:run as {uuid})), 0),
    :topic, :payload, {now}, :sent_by, cast(:ask as text), cast(:taken_by as text)
where true

-- name: find_sent_message
-- Check whether a call has sent its message.
select 1 from {schema}messages where run = cast(:run as {uuid}) and sent_by = :sent_by limit 1

-- name: first_unread_message
-- Read the first message of a topic that no receive has taken.
select n, payload from {schema}messages {indexed_by(holdfast_messages_new)}
where run = cast(:run as {uuid}) and topic = :topic and taken_by is null
order by n limit 1

-- name: take_messages
-- Mark messages as taken.
update {schema}messages set taken_by = each.taken_by
from {each(:rows, run uuid, n int, taken_by text)} {lookup(messages m, m.run = each.run and m.n = each.n)}
where {is_row(messages m, run n)}

-- name: first_waiting_receiver
-- Find the first open wait for a message of a topic; of those registered together, the one with the lowest occurrence.
select generation, key from {schema}waits
where run = cast(:run as {uuid}) and kind = 'message' and target = :topic and outcome is null
order by since, length(key), key limit 1

-- name: set_message_aside
-- Set aside the message that a wait has taken.
update {schema}messages set taken_by = cast(:set_aside as text) where run = cast(:run as {uuid}) and taken_by = :taken_by
returning n, topic

-- name: supersede_outcome
-- Supersede the outcome of a wait for a message or an event, like `supersede_checkpoints`.
update {schema}checkpoints set generation = -1 - fence
where run = cast(:run as {uuid}) and generation = cast(:generation as int) and key = :key and kind in ('message', 'event')
returning n

-- name: list_set_aside
-- List the messages of a run that were set aside, without their payloads.
select n, topic, octet_length(payload), sent_at from {schema}messages
where run = cast(:id as {uuid}) and taken_by like 'aside:%' order by n limit 1000

-- name: read_message_payloads
-- Read the payloads of messages of a run.
select m.n, m.payload from {each(:rows, n int)} join {schema}messages m on m.run = cast(:id as {uuid}) and m.n = each.n

-- name: read_set_aside
-- Read a message that was set aside, and its receiver.
select topic, payload, taken_by from {schema}messages
where run = cast(:run as {uuid}) and n = cast(:n as int) and taken_by like 'aside:%'

-- name: return_unread_messages
-- Return messages that waits of these runs have taken but the task hasn't seen.
update {schema}messages set taken_by = null
where run {among(:rows, id uuid)} and (run, taken_by) in (
    select w.run, cast(w.generation as text) || ':' || w.key from {schema}waits w
    where w.run {among(:rows, id uuid)} and w.kind = 'message' and w.outcome = 'message'
)

-- name: return_messages
-- Return messages that these receivers have taken but the task hasn't seen.
update {schema}messages set taken_by = null
where run {among(:rows, run uuid)} and (run, taken_by) in (
    select cast(each.run as {uuid}), each.taken_by from {each(:rows, run uuid, taken_by text)}
)
returning run, topic
