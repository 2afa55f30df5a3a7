-- name: add_lanes
-- Insert lanes, the pairs of queue and task. One that is marked as unused is in use again.
insert into {schema}lanes (queue, task)
select each.queue, each.task from {each(:rows, queue text, task text)}
where true
on conflict (queue, task) do update set unused_since = null where {schema}lanes.unused_since is not null

-- name: find_lanes
-- Find those of these lanes in which runs may be created.
select l.id, l.queue, l.task from {each(:rows, queue text, task text)}
join {schema}lanes l on l.queue = each.queue and l.task = each.task where l.unused_since is null

-- name: list_lanes
-- List all lanes; there are as many as pairs of queue and task in use.
select id, queue, task, limited, unused_since from {schema}lanes

-- name: list_retired_lanes
-- List the lanes that were collected, for statistics about their runs.
select id, queue, task from {schema}retired_lanes

-- name: list_busy_lanes
-- Count scheduled, owned and held runs by lane, up to {limit} of each kind.
select 'scheduled', lane, count(*) from (
    select lane from {schema}runs where state = 'scheduled' order by due_at limit {limit}
) scheduled group by lane
union all
select 'owned', lane, count(*) from (
    select lane from {schema}runs where session is not null order by session limit {limit}
) owned group by lane
union all
select 'held', lane, count(*) from (
    select lane from {schema}runs where held is not null order by held limit {limit}
) held group by lane

-- part: lanes_without_runs
-- Select those of these lanes that have no ready, suspended or ended run.
--
-- Ranges in the order of the index, because a planner with misleading statistics scans the table for the first row that
-- is equal.
select l.id from {schema}lanes l where l.id {among(:rows, id bigint)}
and (
    select 1 from {schema}runs r where r.lane >= l.id and r.lane < l.id + 1 and r.state = 'ready' and r.held is null
    order by r.lane limit 1
) is null
and (
    select 1 from {schema}runs r where r.lane >= l.id and r.lane < l.id + 1 and r.state in ('waiting', 'blocked')
    order by r.lane limit 1
) is null
and (
    select 1 from {schema}runs r where coalesce(r.finished_at, 0) > 0 and r.lane >= l.id and r.lane < l.id + 1
    order by r.lane limit 1
) is null

-- name: find_lanes_without_runs
-- Find those of these lanes that have no ready, suspended or ended run.
{part(lanes_without_runs)}

-- name: find_unused_lanes
-- Find those of these lanes that have no run at all, up to {limit} scheduled, owned and held runs.
--
-- One statement, and so one snapshot: a run that is claimed or released meanwhile isn't missed.
{part(lanes_without_runs)}
and l.id not in (
    select s.lane from (select lane from {schema}runs where state = 'scheduled' order by due_at limit {limit}) s
    union all
    select o.lane from (select lane from {schema}runs where session is not null order by session limit {limit}) o
    union all
    select h.lane from (select lane from {schema}runs where held is not null order by held limit {limit}) h
)

-- name: list_scheduled_lanes
-- List the queues and tasks of schedules, whose lanes must exist.
select distinct queue, task from {schema}schedules

-- name: mark_lanes_used
-- Remove the mark from lanes that have runs.
update {schema}lanes set unused_since = null where unused_since is not null and id {among(:rows, id bigint)}

-- name: mark_lanes_unused
-- Mark lanes without runs.
update {schema}lanes set unused_since = {now} where unused_since is null and id {among(:rows, id bigint)}

-- name: pick_retired_lanes
-- Pick and lock lanes that were marked long ago, so that nobody removes the mark meanwhile.
select id from {schema}lanes where id {among(:rows, id bigint)} and unused_since <= {now} - cast(:age as bigint)
order by id {lock_skip_locked}

-- name: add_retired_lanes
-- Keep the names of lanes that are about to be deleted.
insert into {schema}retired_lanes (id, queue, task, retired_at)
select id, queue, task, {now} from {schema}lanes where id {among(:rows, id bigint)}
on conflict (id) do nothing

-- name: delete_lanes
-- Delete lanes whose names were kept.
delete from {schema}lanes where id {among(:rows, id bigint)}

-- name: last_retired_lane
-- Find the last of the next retired lanes; null if there are none.
select max(id) from (
    select id from {schema}retired_lanes where id > cast(:above as bigint) order by id limit cast(:size as bigint)
) t

-- name: find_late_lanes
-- Find retired lanes that got runs.
select t.id, t.queue, t.task from {schema}retired_lanes t
where t.id > cast(:above as bigint) and t.id <= cast(:last as bigint) and ((
    select 1 from {schema}runs r where r.lane >= t.id and r.lane < t.id + 1 and r.state = 'ready' and r.held is null
    order by r.lane limit 1
) = 1 or (
    select 1 from {schema}runs r where r.lane >= t.id and r.lane < t.id + 1 and r.state in ('waiting', 'blocked')
    order by r.lane limit 1
) = 1)
order by t.id limit 100

-- name: pick_late_runs
-- Pick ready and suspended runs of a retired lane, a batch of each.
select id from (
    select id from {schema}runs where lane = cast(:lane as bigint) and state = 'ready' and held is null
    order by lane, priority desc limit 500
) ready
union all
select id from (
    select id from {schema}runs where lane = cast(:lane as bigint) and state in ('waiting', 'blocked') order by lane limit 500
) suspended

-- name: move_runs
-- Move runs to another lane.
--
-- A worker that knew the old lane may have claimed a run since it was picked. Such a run stays: another fence would
-- make the worker lose it.
with late as materialized (
    select r.id from {schema}runs r
    where r.id {among(:rows, id uuid)} and r.lane = cast(:old as bigint) and r.session is null
    and coalesce(r.state, '') in ('ready', 'waiting', 'blocked')
    order by r.seq {lock_skip_locked}
)
update {schema}runs set lane = cast(:lane as bigint), fence = fence + 1 where id {among(late, id)}
returning id, {notify_workers}

-- name: prune_retired_lanes
-- Forget the names of lanes that were retired long ago, except for the newest. A nested graph that starts late needs them.
delete from {schema}retired_lanes where retired_at < {now} - cast(:age as bigint) and retired_at < (
    select retired_at from {schema}retired_lanes order by retired_at desc limit 1 offset cast(:kept as bigint)
)
