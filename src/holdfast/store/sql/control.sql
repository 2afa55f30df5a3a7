-- name: run_more
-- What operators see of a run beyond what applications do.
select args, options, unique_name, deadline, expires_at, case when finished_at is null then ending end, generation, parked_on
from {schema}runs where id = cast(:id as {uuid})

-- name: runs_between
-- The first runs whose ids lie between two: those that begin with what someone typed.
select r.id, r.task, r.state from {schema}shown_runs r
where r.id between cast(:low as {uuid}) and cast(:high as {uuid})
order by r.id limit cast(:size as bigint)

-- name: tops_between
-- The first two of them that are nobody's child.
select id from {schema}runs where id between cast(:low as {uuid}) and cast(:high as {uuid}) and parent is null
order by id limit 2

-- name: list_sessions
-- Worker sessions, alive or dead, with what is left of their lease and how many runs name them.
select w.session, w.name, w.started_at, w.lease_until - {clock}, w.idle, w.info,
    (select count(*) from {schema}runs r where r.session = w.session), w.status
from {schema}workers w order by w.started_at, w.session

-- name: count_claimed
-- Count the runs that these sessions have claimed, by session and task. Uses the index of owned runs.
select r.session, l.task, count(*) from {schema}runs r join {schema}lanes l on l.id = r.lane
where r.session {among(:rows, session text)}
group by r.session, l.task

-- name: count_expired
-- How many finished runs are past the time that they were to be kept.
select count(*) from {schema}runs where expires_at is not null and expires_at <= {now} and session is null

-- name: count_older
-- How many runs ended longer ago than that.
select count(*) from {schema}runs where finished_at <= {now} - cast(:age as bigint) and session is null

-- name: pick_ended
-- Those of these runs that have ended and are nobody's child, whether they have a family, and whether anyone in it is at work.
with old as materialized (
    select id from {schema}runs where id {among(:rows, id uuid)} and finished_at is not null and session is null and parent is null
    order by id {lock_free}
)
select old.id, (select 1 from {schema}runs d where d.root = old.id limit 1),
    (select 1 from {schema}runs d where d.root = old.id and (d.finished_at is null or d.session is not null) limit 1)
from old order by old.id

-- name: pick_older
-- Runs that ended longer ago than that, in small batches by id, whether they have a family, and whether anyone in it is at work. Children
-- go with their root.
with old as materialized (
    select id from {schema}runs
    where id > cast(:after as {uuid}) and finished_at <= {now} - cast(:age as bigint) and session is null and parent is null
    order by id limit 500 {lock_free}
)
select old.id, (select 1 from {schema}runs d where d.root = old.id limit 1),
    (select 1 from {schema}runs d where d.root = old.id and (d.finished_at is null or d.session is not null) limit 1)
from old order by old.id

-- name: open_gates
-- Gates that wait for somebody, the oldest first. They are few among all that waits: their lanes lead to them.
select g.id, g.node, g.parent, l.task, g.tenant, g.created_at, g.deadline, g.plan
from {schema}lanes gl join {schema}runs g on g.lane = gl.id join {schema}runs p on p.id = g.parent join {schema}lanes l on l.id = p.lane
where gl.queue = '$graph' and g.state in ('waiting', 'blocked') and g.state = 'waiting' and g.kind = 'gate'
and (cast(:tenant as text) is null or g.tenant = :tenant)
order by g.seq limit cast(:size as bigint)

-- name: run_pulse
-- What changes about a run while it lives: two looks that see the same mean that nothing happened between them.
select r.state, r.attempt, r.fence, r.generation, r.records, r.progress,
    (select max(c.n) from {schema}checkpoints c where c.run = r.id and c.generation = r.generation)
from {schema}runs r where r.id = cast(:id as {uuid})

-- name: children_pulse
-- How many children and nodes a run has, by state.
select state, count(*) from {schema}runs where parent = cast(:id as {uuid}) group by state order by state
