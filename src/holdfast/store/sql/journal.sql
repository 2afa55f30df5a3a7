-- name: record_checkpoints
-- only: postgres
-- Checkpoints of attempts, fenced: a run that isn't this session's at this fence any more gets none. A run that was cancelled while its
-- worker was in a step with an undo still gets that step's, so that it can be undone. The time of `now` is the database's. One statement:
-- a round trip less is a third of a lone step (bench steps).
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
given as materialized (
    select each.* from alive cross join {each(:rows, run uuid, seq bigint, fence bigint, generation int, n int, key text, kind text, value text, took bigint, undo smallint)}
    order by each.seq
),
held as materialized (
    select given.*, r.* from given cross join lateral (
        select x.fence as was_fence, x.session as was_session, x.state as was_state, x.ending as was_ending
        from {schema}runs x where x.id = given.run {lock}
    ) r
)
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select run, generation, n, key, kind, case when kind = 'now' then cast({stamp} as text) else value end, fence, undo, took, {stamp}
from held where was_fence = fence and was_session = :session and (was_state = 'running' or (was_ending is not null and undo = 1))
on conflict do nothing
returning run, n, case when kind = 'now' then value end

-- name: record_checkpoints
-- only: sqlite
-- counted
-- The same. Numbers of runs are never given twice, so that they find a run as well as its id; each look into the JSON costs something, so
-- what the row has is taken from there (bench steps). Coalesce keeps the planner from walking all runs of the session.
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select r.id, each.generation, each.n, each.key, each.kind,
    case when each.kind = 'now' then cast({now} as text) else each.value end, r.fence, each.undo, each.took, {now}
from {each(:rows, seq bigint, fence bigint, generation int, n int, key text, kind text, value text, took bigint, undo smallint)}
cross join {schema}runs r
where exists (select 1 from {schema}workers where session = :session and lease_until > {clock})
and r.seq = each.seq and r.fence = each.fence and coalesce(r.session, '') = :session
and (r.state = 'running' or (r.ending is not null and each.undo = 1))
on conflict do nothing

-- name: record_steps
-- only: postgres
-- Checkpoints of steps that went well and have no undo, under the same conditions; how many were written.
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
given as materialized (
    select each.* from alive cross join {each(:rows, run uuid, seq bigint, fence bigint, n int, key text, value text, took bigint)}
    order by each.seq
),
held as materialized (
    select given.*, r.* from given cross join lateral (
        select x.generation, x.fence as was_fence, x.session as was_session, x.state as was_state
        from {schema}runs x where x.id = given.run {lock}
    ) r
),
written as (
    insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
    select run, generation, n, key, 'step', value, fence, 0, took, {stamp}
    from held where was_fence = fence and was_session = :session and was_state = 'running'
    on conflict do nothing
    returning 1
)
select count(*) from written

-- name: record_steps
-- only: sqlite
-- counted
-- The same. Each look into the JSON costs something: what the run says isn't asked of it (bench steps).
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select r.id, r.generation, each.n, each.key, 'step', each.value, r.fence, 0, each.took, {now}
from {each(:rows, seq bigint, fence bigint, n int, key text, value text, took bigint)} cross join {schema}runs r
where exists (select 1 from {schema}workers where session = :session and lease_until > {clock})
and r.seq = each.seq and r.fence = each.fence and coalesce(r.session, '') = :session and r.state = 'running'
on conflict do nothing

-- name: to_be_undone
-- Which of these runs were ended from outside while a worker was at them, and are to undo: its author code has to stop.
select r.id from {schema}runs r where r.id {among(:rows, id uuid)} and r.ending is not null and r.state <> 'running'

-- name: add_checkpoints
-- Checkpoints of runs that are locked and were found to be the session's, in the same transaction.
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select cast(each.run as {uuid}), each.generation, each.n, each.key, each.kind, each.value, each.fence, each.undo, each.took, {stamp}
from {each(:rows, run uuid, fence bigint, generation int, n int, key text, kind text, value text, took bigint, undo smallint)}
where true
on conflict do nothing

-- name: recorded
-- What stands at these numbers already: a repeat after a lost answer reads back what was done.
select c.run, c.n, c.key, c.fence, c.kind, c.value
from {each(:rows, run uuid, generation int, n int)}
join {schema}checkpoints c on c.run = each.run and c.generation = each.generation and c.n = each.n
where c.run {among(:rows, run uuid)}

-- name: load_checkpoints
-- The first checkpoints of runs, at most so many of each and about so many bytes in all: a page for each.
select run, n, key, kind, value, undo from (
    select c.run, c.n, c.key, c.kind, c.value, c.undo,
        row_number() over (partition by c.run order by c.n) as number,
        sum(length(coalesce(c.value, ''))) over (partition by c.run order by c.n) - length(coalesce(c.value, '')) as before
    from {each(:rows, run uuid, generation int)}
    join {schema}checkpoints c on c.run = each.run and c.generation = each.generation
    where c.run {matching(:rows, run uuid)} and c.n <= cast(:most as int)
) page
where number <= cast(:most as int) and before <= cast(:bytes as bigint)
order by run, n

-- name: last_numbers
-- The last checkpoints' numbers.
select each.run, max(c.n)
from {each(:rows, run uuid, generation int)}
join {schema}checkpoints c on c.run = each.run and c.generation = each.generation
where c.run {among(:rows, run uuid)}
group by each.run

-- name: load_page
-- The next checkpoints of one run.
select n, key, kind, value, undo from (
    select p.*, sum(length(coalesce(p.value, ''))) over (order by p.n) - length(coalesce(p.value, '')) as before
    from (
        select n, key, kind, value, undo from {schema}checkpoints
        where run = cast(:run as {uuid}) and generation = cast(:generation as int) and n > cast(:after as int)
        order by n limit 500
    ) p
) page
where before <= cast(:bytes as bigint)
order by n

-- name: load_waits
-- What runs wait for, and what came of it.
select w.run, w.key, w.kind, w.outcome, w.value, w.due_at - {now}
from {each(:rows, run uuid, generation int)}
join {schema}waits w on w.run = each.run and w.generation = each.generation
where w.run {matching(:rows, run uuid)}
order by w.run, w.settled_at, w.key

-- name: settled_waits
-- What came of the waits of these runs.
select w.run, w.key, w.kind, w.outcome, w.value
from {each(:rows, run uuid, generation int)}
join {schema}waits w on w.run = each.run and w.generation = each.generation and w.outcome is not null
where w.run {matching(:rows, run uuid)}
order by w.run, w.settled_at, w.key

-- name: hold_runs
-- Locks runs in the order of arrival, with what writers need to know of them.
select r.id, r.seq, r.state, r.session, r.fence, r.generation, r.tenant, r.root, r.parent, r.spawn_key, r.place, r.attempt, r.ending,
    r.kind, r.node, r.limits
from {schema}runs r where r.id {among(:rows, id uuid)}
order by r.seq {lock}

-- name: add_waits
-- Registers waits. One that is there already keeps its time: a retry doesn't extend a sleep.
insert into {schema}waits (run, generation, key, kind, target, eager, pending, due_at, since)
select cast(each.run as {uuid}), each.generation, each.key, each.kind, each.target, each.eager, each.pending,
    coalesce(each.due_at, {stamp} + each.delay), {stamp}
from {each(:rows, run uuid, generation int, key text, kind text, target text, eager smallint, pending int, due_at bigint, delay bigint)}
where true
on conflict do nothing
returning run, key, due_at - {stamp}

-- name: known_waits
-- Which of these waits are there already, how long until they are due, and what came of them.
select w.run, w.key, w.due_at - {now}, w.outcome, w.value
from {each(:rows, run uuid, generation int, key text)}
join {schema}waits w on w.run = each.run and w.generation = each.generation and w.key = each.key
where w.run {matching(:rows, run uuid)}

-- name: drop_waits
-- Waits whose outcome is recorded.
delete from {schema}waits where run {among(:rows, run uuid)} and (run, generation, key) in (
    select cast(each.run as {uuid}), each.generation, each.key from {each(:rows, run uuid, generation int, key text)}
)

-- name: withdraw_waits
-- Waits that author code gave up, and what had come of them.
delete from {schema}waits where run {among(:rows, run uuid)} and (run, generation, key) in (
    select cast(each.run as {uuid}), each.generation, each.key from {each(:rows, run uuid, generation int, key text)}
)
returning run, key, outcome

-- name: pick_due_waits
-- Runs with a wait that is due, in small batches.
select w.run from {schema}waits w where w.outcome is null and w.due_at is not null and w.due_at <= {now}
order by w.due_at limit 500

-- name: hold_free_runs
-- Locks those of the runs that nobody else holds.
select r.id, r.seq, r.state, r.session, r.fence, r.generation, r.tenant, r.root, r.parent, r.spawn_key, r.place, r.attempt, r.ending,
    r.kind, r.node, r.limits
from {schema}runs r where r.id {among(:rows, id uuid)}
order by r.seq {lock_free}

-- name: settle_due
-- Waits of these runs that are due have come to nothing, or to their end. (coalesce keeps the planner from walking all that are due.)
update {schema}waits set outcome = 'due', settled_at = {now}
where run {among(:rows, id uuid)} and outcome is null and coalesce(due_at, {now} + 1) <= {now}
returning run, key

-- name: settle_waits
-- Open waits of locked runs get what they waited for.
update {schema}waits set outcome = each.outcome, value = each.value, settled_at = {now}
from {each(:rows, run uuid, generation int, key text, outcome text, value text)}
where {schema}waits.run {matching(:rows, run uuid)} and {schema}waits.run = each.run and {schema}waits.generation = each.generation
and {schema}waits.key = each.key and {schema}waits.outcome is null
returning {schema}waits.run, {schema}waits.key

-- name: wake_runs
-- Make waiting runs with a settled wait ready, behind runs that are ready already; they continue the attempt that they had. (coalesce keeps the
-- planner from walking all that wait.)
update {schema}runs set state = 'ready', turn = {next_turn({schema}runs, {stamp})}
where id {among(:rows, id uuid)} and coalesce(state, '') = 'waiting'
and (
    select 1 from {schema}waits w where w.run = {schema}runs.id and w.generation = {schema}runs.generation and w.outcome is not null limit 1
) = 1
returning id, {notify_workers}

-- name: mark_undos
-- The run may have compensations from now on.
update {schema}runs set undos = 1 where id {among(:rows, id uuid)}

-- name: set_progress
-- How far runs have come.
update {schema}runs set progress = each.progress
from {each(:rows, id uuid, progress text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id

-- name: add_chunks
-- What runs wrote, numbered on from what they wrote before.
insert into {schema}chunks (run, n, attempt, data, at)
select cast(each.run as {uuid}), each.number + coalesce((select max(c.n) from {schema}chunks c where c.run = each.run), 0),
    each.attempt, each.data, {now}
from {each(:rows, run uuid, number int, attempt int, data text)}

-- name: delete_checkpoints
-- All that these runs recorded: they begin anew, or are pruned.
delete from {schema}checkpoints where run {among(:rows, id uuid)}

-- name: delete_waits
-- All that these runs waited for: they are done, begin anew, or are pruned.
delete from {schema}waits where run {among(:rows, id uuid)}

-- name: forget_failures
-- Failures of steps that ended an attempt: the next one tries the steps again.
delete from {schema}checkpoints where run {among(:rows, run uuid)} and (run, generation, n) in (
    select cast(each.run as {uuid}), each.generation, each.n from {each(:rows, run uuid, generation int, n int)}
)
