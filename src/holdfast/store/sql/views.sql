-- name: run_info
-- One run as people see it.
select r.id, l.queue, l.task, r.state, r.priority, r.attempt, r.crashes, r.error, r.result, r.created_at, r.started_at, r.finished_at,
    r.session, r.tenant, r.tags, r.due_at, r.claimed_at, r.held
from {schema}runs r join {schema}lanes l on l.id = r.lane
where r.id = cast(:id as {uuid})

-- name: run_end
-- Whether a run has ended, and how.
select state, result, error from {schema}runs where id = cast(:id as {uuid})

-- name: list_runs
-- A page of runs, newest first, by id, which sorts by the time it was made.
select r.id, l.queue, l.task, r.state, r.priority, r.attempt, r.crashes, r.error, r.result, r.created_at, r.started_at, r.finished_at,
    r.session, r.tenant, r.tags, r.due_at, r.claimed_at, r.held
from {schema}runs r join {schema}lanes l on l.id = r.lane
where (cast(:after as {uuid}) is null or r.id < cast(:after as {uuid}))
and (cast(:state as text) is null or r.state = :state)
and (cast(:task as text) is null or l.task = :task)
and (cast(:queue as text) is null or l.queue = :queue)
and (cast(:tenant as text) is null or r.tenant = :tenant)
and (cast(:tag as text) is null or exists (select 1 from {each_text(r.tags)} where each.value = :tag))
order by r.id desc limit cast(:size as bigint)

-- name: run_history
-- The kept records of a run, in order.
select n, at, kind, attempt, session, since, data from {schema}history where run = cast(:id as {uuid}) order by n
