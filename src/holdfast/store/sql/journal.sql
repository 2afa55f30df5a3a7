-- name: record_checkpoints
-- only: postgres
-- Record checkpoints of attempts that still hold their run's fence.
--
-- A run that was cancelled during a step with a compensation still gets that step's checkpoint, so that it can be
-- undone. The value of kind `now` is the database time. One statement: a round trip is a third of a lone step (bench:
-- steps).
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
given as materialized (
    select each.* from alive cross join {each(:rows, run uuid, seq bigint, fence bigint, generation int, n int, key text, kind text, value text, took bigint, undo smallint)}
    order by each.seq
),
locked as materialized (
    select given.*, r.* from given cross join lateral (
        select x.fence as was_fence, x.session as was_session, x.state as was_state, x.ending as was_ending
        from {schema}runs x where x.id = given.run {lock}
    ) r
)
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select run, generation, n, key, kind, case when kind = 'now' then cast({stamp} as text) else value end, fence, undo, took, {stamp}
from locked where was_fence = fence and was_session = :session and (was_state = 'running' or (was_ending is not null and undo = 1))
on conflict do nothing
returning run, n, case when kind = 'now' then value end

-- name: record_checkpoints
-- only: sqlite
-- counted
-- Record checkpoints of attempts that still hold their run's fence, as on PostgreSQL.
--
-- By `seq`, which is never reused. Each access to the JSON is expensive, so what the row has is taken from there
-- (bench: steps). coalesce keeps the planner from reading all runs of the session.
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
-- Record checkpoints of successful steps without compensations, under the same conditions; return how many.
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
given as materialized (
    select each.* from alive cross join {each(:rows, run uuid, seq bigint, fence bigint, n int, key text, value text, took bigint)}
    order by each.seq
),
locked as materialized (
    select given.*, r.* from given cross join lateral (
        select x.generation, x.fence as was_fence, x.session as was_session, x.state as was_state
        from {schema}runs x where x.id = given.run {lock}
    ) r
),
written as (
    insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
    select run, generation, n, key, 'step', value, fence, 0, took, {stamp}
    from locked where was_fence = fence and was_session = :session and was_state = 'running'
    on conflict do nothing
    returning 1
)
select count(*) from written

-- name: record_steps
-- only: sqlite
-- counted
-- Record checkpoints of successful steps without compensations, under the same conditions.
--
-- Each access to the JSON is expensive, so what the row has isn't taken from there (bench: steps).
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select r.id, r.generation, each.n, each.key, 'step', each.value, r.fence, 0, each.took, {now}
from {each(:rows, seq bigint, fence bigint, n int, key text, value text, took bigint)} cross join {schema}runs r
where exists (select 1 from {schema}workers where session = :session and lease_until > {clock})
and r.seq = each.seq and r.fence = each.fence and coalesce(r.session, '') = :session and r.state = 'running'
on conflict do nothing

-- name: find_undoing
-- Find those of these runs that were ended from outside and are to undo: their code has to stop.
select r.id from {schema}runs r where r.id {among(:rows, id uuid)} and r.ending is not null and r.state <> 'running'

-- name: add_checkpoints
-- Insert checkpoints of runs that this transaction has locked and found to be the session's.
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select cast(each.run as {uuid}), each.generation, each.n, each.key, each.kind, each.value, each.fence, each.undo, each.took, {stamp}
from {each(:rows, run uuid, fence bigint, generation int, n int, key text, kind text, value text, took bigint, undo smallint)}
where true
on conflict do nothing

-- name: read_recorded
-- Read the checkpoints with these numbers, for a repeat after a lost response. The same batch may have superseded one.
select c.run, c.n, c.key, c.fence, c.kind, c.value
from {each(:rows, run uuid, generation int, n int)}
{lookup(checkpoints c, c.run = each.run and c.generation = each.generation and c.n = each.n)}

-- name: expect_unrecorded
-- only: postgres
-- Fail if a checkpoint with one of these numbers exists: then the commands were committed before. A statement of its
-- own, after the locks, so that it sees what another transaction has written until then.
select {expect(found.number = 0)} from (
    select count(*) as number from {each(:rows, run uuid, generation int, n int)}
    {lookup(checkpoints c, c.run = each.run and c.generation = each.generation and c.n = each.n)}
) found

-- name: load_first_checkpoints
-- Load the first checkpoints of runs, up to a number of rows and about a number of bytes for each run.
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

-- name: last_checkpoint_numbers
-- Read the number of the last checkpoint of each run.
select each.run, (
    select c.n from {schema}checkpoints c where c.run = each.run and c.generation = each.generation
    order by c.run desc, c.generation desc, c.n desc limit 1
)
from {each(:rows, run uuid, generation int)}

-- name: load_checkpoint_page
-- Load the next checkpoints of one run.
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
-- Load the waits of runs, with their outcomes, and the time.
select w.run, w.key, w.kind, w.outcome, w.value, w.due_at, {now}
from {each(:rows, run uuid, generation int)}
join {schema}waits w on w.run = each.run and w.generation = each.generation
where w.run {matching(:rows, run uuid)}
order by w.run, w.settled_at, w.key

-- name: read_resolved_waits
-- Read the resolved waits of runs.
select w.run, w.key, w.kind, w.outcome, w.value
from {each(:rows, run uuid, generation int)}
{lookup(waits w, w.run = each.run and w.generation = each.generation and w.outcome is not null, holdfast_waits_resolved)}
order by w.run, w.settled_at, w.key

-- name: mark_undos
-- Mark that runs may have compensations from now on.
update {schema}runs set undos = 1 where id {among(:rows, id uuid)}

-- name: set_progress
-- Set the progress of runs.
update {schema}runs set progress = each.progress
from {each(:rows, id uuid, progress text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id

-- name: read_metadata_sizes
-- Read the names of metadata of locked runs, and the sizes of the values.
select m.run, m.name, octet_length(m.value) from {schema}metadata m where m.run {among(:rows, id uuid)}

-- name: set_metadata
-- Set metadata of locked runs.
insert into {schema}metadata (run, name, value)
select cast(each.run as {uuid}), each.name, each.value from {each(:rows, run uuid, name text, value text)}
where true
on conflict (run, name) do update set value = excluded.value

-- name: number_history
-- Number the next history rows of locked runs; return the last number of each run.
update {schema}runs set records = records + each.count
from {each(:rows, id uuid, count int)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id
returning {schema}runs.id, records

-- name: find_failed_tries
-- Find those of these entries about failed tries that are in the history, for a repeat after a lost response.
select each.at, h.n
from {each(:rows, at int, run uuid, data text, after int)}
{lookup(history h, h.run = each.run and h.n > each.after)}
where h.kind = 'step_retrying' and h.data = each.data

-- name: delete_history_entries
-- Delete single history entries.
delete from {schema}history where {among_keys(history, :rows, run uuid, n int)}

-- name: add_chunks
-- Append chunks that runs wrote for their followers, numbered on from the last, except those of steps that were appended
-- before the reply got lost.
--
-- Those of the body have checkpoints, which tell. Serials of a claim nearly always increase: only if that of the last
-- chunk isn't smaller, the chunks that the same batch may have appended are compared.
insert into {schema}chunks (run, n, attempt, data, at, step, step_try, fence, generation, serial)
select cast(each.run as {uuid}), each.number + coalesce((select max(c.n) from {schema}chunks c where c.run = each.run), 0),
    each.attempt, each.data, {now}, each.step, each.step_try, each.fence, each.generation, each.serial
from {each(:rows, run uuid, number int, attempt int, data text, step text, step_try int, fence bigint, generation int, serial int)}
where each.step is null or coalesce((
    select case when c.fence = each.fence then case when c.step is null then each.serial else c.serial end end
    from {schema}chunks c where c.run = each.run order by c.n desc limit 1
), 0) < each.serial or not exists (
    select 1 from {schema}chunks c
    where c.run = each.run and c.n > (select max(x.n) - 1000 from {schema}chunks x where x.run = each.run)
    and c.fence = each.fence and c.serial = each.serial and c.step is not null
)
returning {notify_followers}

-- name: mark_chunks_of_restarts
-- Note that runs start over after the last chunk that each has written: none of its chunks counts any more.
update {schema}chunks set started_over = 1
where (run, n) in (
    select each.id, (select max(c.n) from {schema}chunks c where c.run = each.id) from {each(:rows, id uuid)}
)

-- name: delete_checkpoints
-- Delete all checkpoints of runs that start over or are pruned.
delete from {schema}checkpoints where run {among(:rows, id uuid)}

-- name: delete_waits
-- Delete all waits of runs that are done, start over or are pruned.
delete from {schema}waits where run {among(:rows, id uuid)}

-- name: supersede_checkpoints
-- Take checkpoints out of the replay, so that their operations run again. They stay for display, in a negative
-- generation, which no replay loads (decision 25).
--
-- The generation names the claim that wrote the row: a later attempt may use the same numbers again.
update {schema}checkpoints set generation = -1 - fence
where {among_keys(checkpoints, :rows, run uuid, generation int, n int)}

-- name: find_first_undone
-- Find the first checkpoint of each run that was undone and isn't superseded.
select u.run, u.generation, min(c.n) from {schema}checkpoints u
join {schema}checkpoints c on c.run = u.run and c.generation = u.generation and c.n = cast(u.value as int)
where u.run {among(:rows, id uuid)} and c.run {among(:rows, id uuid)} and u.kind = 'undone' and u.generation >= 0
group by u.run, u.generation

-- name: rewind_checkpoints
-- Supersede the checkpoints of runs from a number on, like `supersede_checkpoints`.
--
-- The records that steps were undone stay in the replay: the next try of a step has another idempotency key.
update {schema}checkpoints set generation = -1 - fence
from {each(:rows, run uuid, generation int, n int)}
where {schema}checkpoints.run {matching(:rows, run uuid)} and {schema}checkpoints.run = each.run
and {schema}checkpoints.generation = each.generation and {schema}checkpoints.n >= each.n and (kind <> 'undone' or each.n = 0)
returning {schema}checkpoints.run, {schema}checkpoints.generation, {schema}checkpoints.n, key, kind
