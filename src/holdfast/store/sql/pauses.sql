-- name: pause_names
-- Pause tasks or tenants: no claim that starts after the commit takes their runs. Return those that weren't paused.
insert into {schema}pauses (kind, name, paused_at, paused_by)
select cast(:kind as text), each.name, {now}, cast(:by as text) from {each(:rows, name text)}
where true
on conflict (kind, name) do update set resuming = 0, paused_at = excluded.paused_at, paused_by = excluded.paused_by
where {schema}pauses.resuming = 1
returning name

-- name: resume_tasks
-- Resume tasks and notify idle workers. Return those that were paused.
delete from {schema}pauses where kind = 'task' and name {among(:rows, name text)}
returning name, {notify_workers}

-- name: resume_tenants
-- Resume tenants and notify idle workers. Timers release what was held. Return those that were paused.
update {schema}pauses set resuming = 1 where kind = 'tenant' and name {among(:rows, name text)} and resuming = 0
returning name, {notify_workers}

-- name: list_pauses
-- List paused tasks and tenants.
select kind, name, paused_at, paused_by from {schema}pauses where resuming = 0 order by kind, name

-- name: list_resuming_tenants
-- List tenants whose held runs have to be released.
select name from {schema}pauses where kind = 'tenant' and resuming = 1 order by name

-- name: release_tenant_runs
-- Release a batch of runs that were held for a tenant. Those that are paused themselves stay out of the ready index.
with held as materialized (
    select r.id from {schema}runs r where r.held = cast(:held as text) order by r.seq limit 1000 {lock_skip_locked}
)
update {schema}runs set held = case when paused_at is not null then 'paused' end where id {among(held, id)}
returning id, {notify_workers}

-- name: check_parked_of_tenant
-- Let timers check soon the limits that runs of a resumed tenant wait for: meanwhile they were passed over.
update {schema}limits set look_at = {now}
where look_at is not null and place in (
    select r.parked_on from {schema}runs r where r.held = 'full' and r.tenant = cast(:name as text)
)
returning place

-- name: finish_resume
-- Forget a pause once no run is held for it.
delete from {schema}pauses where kind = 'tenant' and name = :name and resuming = 1
and not exists (select 1 from {schema}runs r where r.held = cast(:held as text))
returning name

-- name: find_ready_paused
-- Find paused runs that became ready since.
select id from {schema}runs where paused_at is not null and paused_at > 0 and state = 'ready' and held is null order by paused_at limit 1000

-- name: find_ready_of_paused_tenants
-- Find runs of paused tenants among the first ready runs of a lane, which claims would have to walk over.
select head.id from (
    select r.id, r.tenant from {schema}runs r where r.lane = cast(:lane as bigint) and r.state = 'ready' and r.held is null
    order by r.priority desc, r.turn, r.seq limit 5000
) head
where head.tenant is not null and head.tenant in (select p.tenant from {schema}paused_tenants p) limit 1000

-- name: hold_paused_runs
-- Take ready runs that are paused, or whose tenants are, out of the ready index.
with paused as materialized (
    select r.id from {schema}runs r
    where r.id {among(:rows, id uuid)} and coalesce(r.state, '') = 'ready' and r.held is null and not ({claimable(r)})
    order by r.seq {lock_skip_locked}
)
update {schema}runs set held = case when paused_at is not null then 'paused' else 'tenant:' || tenant end
where id {among(paused, id)}
returning id

-- name: pause_runs
-- Pause locked, unfinished runs that aren't paused: they aren't claimed any more. Running ones continue. A parked run
-- leaves its place at the limit to others, and takes its limits again when it is resumed.
update {schema}runs set paused_at = {now}, records = records + 1, parked_on = case when held = 'full' then null else parked_on end,
    held = case when state = 'ready' and (held is null or held = 'full') then 'paused' else held end
where id {among(:rows, id uuid)} and finished_at is null and paused_at is null
returning id, records, attempt

-- name: resume_runs
-- Resume locked, paused runs and notify idle workers.
update {schema}runs set paused_at = null, records = records + 1,
    held = case when held = 'paused' then case when isolation is not null then 'isolated' end else held end
where id {among(:rows, id uuid)} and finished_at is null and paused_at is not null
returning id, records, attempt, {notify_workers}
