-- name: run_info
-- One run as people see it.
select r.* from {schema}shown_runs r
where r.id = cast(:id as {uuid})

-- name: run_end
-- Whether a run has ended, and how.
select case when ending is not null and finished_at is null then 'undoing' else state end, result, error, kind, options
from {schema}runs where id = cast(:id as {uuid})

-- name: run_ends
-- The same of many runs.
select id, case when ending is not null and finished_at is null then 'undoing' else state end, result, error, kind, options
from {schema}runs where id {among(:rows, id uuid)}

-- name: run_history
-- The kept records of a run, in order.
select n, at, kind, attempt, session, since, data from {schema}history where run = cast(:id as {uuid}) order by n

-- name: run_steps
-- What a durable function has recorded since its last restart.
select c.n, c.key, c.kind, c.value, c.undo, c.took, c.at
from {schema}runs r join {schema}checkpoints c on c.run = r.id and c.generation = r.generation
where r.id = cast(:id as {uuid}) order by c.n

-- name: run_waits
-- What a run waits for.
select w.key, w.kind, w.target, w.pending, w.due_at, w.since, w.outcome
from {schema}runs r join {schema}waits w on w.run = r.id and w.generation = r.generation
where r.id = cast(:id as {uuid}) order by w.since, w.key

-- name: run_children
-- The first children of a run, in the order in which they were made, with the call that made them.
select r.* from {schema}shown_runs r
where r.parent = cast(:id as {uuid}) order by r.seq limit cast(:size as bigint)

-- name: run_chunks
-- What a run wrote for its followers, by pages.
select n, attempt, data from {schema}chunks where run = cast(:id as {uuid}) and n > cast(:after as int) order by n limit 500

-- name: open_runs
-- Unfinished runs that were claimed at least once, by pages, and whether they have something on record or wait for something. Each state
-- by an index of its own, so that finished runs cost nothing; a state that comes to be stored needs its line, and its index, here.
select r.id, l.task,
    case when exists (select 1 from {schema}checkpoints c where c.run = r.id and c.generation = r.generation)
        or exists (select 1 from {schema}waits w where w.run = r.id and w.generation = r.generation) then 1 else 0 end
from (
    select id, lane, generation from {schema}runs where state = 'ready' and held is null and fence > 0
    union all
    select id, lane, generation from {schema}runs where state = 'ready' and held is not null and fence > 0
    union all
    select id, lane, generation from {schema}runs where state = 'scheduled' and fence > 0
    union all
    select id, lane, generation from {schema}runs where state = 'running' and session is not null and fence > 0
    union all
    select id, lane, generation from {schema}runs where state in ('waiting', 'blocked') and fence > 0
) r
join {schema}lanes l on l.id = r.lane
where (cast(:after as {uuid}) is null or r.id > cast(:after as {uuid}))
and (cast(:task as text) is null or l.task = :task)
order by r.id limit cast(:size as bigint)

-- name: open_claims
-- Unfinished runs as a worker would get them, for those who look whether new code would do the same.
select l.task, r.state, r.id, r.seq, r.lane, r.priority, r.turn, r.fence, r.attempt, r.failures, cast(null as bigint), r.args, r.options,
    r.generation, r.tenant, r.parent, r.spent, r.undos, r.ending
from {each(:rows, id uuid)} join {schema}runs r on r.id = each.id join {schema}lanes l on l.id = r.lane
where r.id {among(:rows, id uuid)} and r.finished_at is null
