-- name: declare_limits
-- Declare limits, as workers do, and return those that are new or changed.
-- Values that were set at run time stay in force; the declared ones are kept for a reset.
insert into {schema}limit_settings as s (name, concurrency, rate, period, declared_at, weighted)
select each.name, each.concurrency, each.rate, each.period, {now}, each.weighted
from {each(:rows, name text, concurrency int, rate int, period bigint, weighted smallint)}
where true
on conflict (name) do update set
    concurrency = case when s.set_at is null then excluded.concurrency else s.concurrency end,
    rate = case when s.set_at is null then excluded.rate else s.rate end,
    period = case when s.set_at is null then excluded.period else s.period end,
    declared_concurrency = case when s.set_at is null then null else excluded.concurrency end,
    declared_rate = case when s.set_at is null then null else excluded.rate end,
    declared_period = case when s.set_at is null then null else excluded.period end,
    declared_at = excluded.declared_at, weighted = excluded.weighted
where coalesce(case when s.set_at is null then s.concurrency else s.declared_concurrency end, -1) <> coalesce(excluded.concurrency, -1)
    or coalesce(case when s.set_at is null then s.rate else s.declared_rate end, -1) <> coalesce(excluded.rate, -1)
    or coalesce(case when s.set_at is null then s.period else s.declared_period end, -1) <> coalesce(excluded.period, -1)
    or s.weighted <> excluded.weighted
returning name

-- name: add_limits
-- Declare limits that nobody has declared yet, as clients do. Nothing waits for them, and existing ones stay.
insert into {schema}limit_settings (name, concurrency, rate, period, declared_at, weighted)
select each.name, each.concurrency, each.rate, each.period, {now}, each.weighted
from {each(:rows, name text, concurrency int, rate int, period bigint, weighted smallint)}
where true
on conflict do nothing

-- name: set_limit
-- Set the values of a limit until they are reset, and keep the declared ones.
update {schema}limit_settings set
    declared_concurrency = case when set_at is null then concurrency else declared_concurrency end,
    declared_rate = case when set_at is null then rate else declared_rate end,
    declared_period = case when set_at is null then period else declared_period end,
    concurrency = cast(:concurrency as int), rate = cast(:rate as int), period = cast(:period as bigint),
    set_at = {now}, set_by = cast(:set_by as text)
where name = :name
returning name

-- name: reset_limit
-- Return to the declared values of a limit.
update {schema}limit_settings set concurrency = declared_concurrency, rate = declared_rate, period = declared_period,
    declared_concurrency = null, declared_rate = null, declared_period = null, set_at = null, set_by = null
where name = :name and set_at is not null
returning name

-- name: check_parked_soon
-- Let timers check soon the runs and steps that wait for counters of changed limits.
update {schema}limits set look_at = {now} where name {among(:rows, name text)} and look_at is not null
returning place

-- name: mark_lanes_limited
-- Mark lanes that get runs with limits.
update {schema}lanes set limited = 1 where id {among(:rows, id bigint)} and limited = 0

-- name: pick_limited
-- only: postgres
-- Pick and lock the first ready runs of limited lanes for a session with a valid lease; skip locked ones.
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
candidates as materialized (
    select ready.id
    from alive cross join {each(:lanes, lane bigint)} cross join lateral (
        select r.id, r.priority, r.turn, r.seq from {schema}runs r
        where r.lane = each.lane and r.state = 'ready' and r.held is null and {claimable(r)}
        order by r.priority desc, r.turn, r.seq limit {limit}
    ) ready
    where each.lane not in (select id from {schema}paused_lanes)
    order by ready.priority desc, ready.turn, ready.seq limit {limit}
)
select r.id, r.limits, r.priority, r.turn, r.seq from {schema}runs r
where r.id {among(candidates, id)} and coalesce(r.state, '') = 'ready' and r.held is null and r.paused_at is null
and (r.start_by is null or r.start_by > {now} or r.started_at is not null)
order by r.priority desc, r.turn, r.seq {lock_skip_locked}

-- name: pick_limited
-- only: sqlite
-- packed
-- Pick the first ready runs of limited lanes for a session with a valid lease.
select json_group_array(json_array(id, limits, priority, turn, seq)) from (
    select r.id, r.limits, r.priority, r.turn, r.seq from {each(:lanes, lane bigint)} cross join {schema}runs r
    where each.lane not in (select id from {schema}paused_lanes) and r.seq in (
        select x.seq from {schema}runs x where x.lane = each.lane and x.state = 'ready' and x.held is null and {claimable(x)}
        order by x.priority desc, x.turn, x.seq limit {limit}
    )
    and exists (select 1 from {schema}workers where session = :session and lease_until > {clock})
    and (r.start_by is null or r.start_by > {now} or r.started_at is not null)
    order by r.priority desc, r.turn, r.seq limit {limit}
)

-- name: lock_counters
-- only: postgres
-- Lock counters in order, creating missing ones; return them with what their limits allow and the time when all are
-- locked.
--
-- An upsert finds rows by primary key whatever the planner believes. A join doesn't: a plan that was cached while the
-- table was small reads all of it for every batch once it has grown (20,000 keys; tests/store/test_many_counters.py).
with counters as (
    insert into {schema}limits (place, name, touched_at)
    select each.place, each.name, {stamp} from {each(:rows, place text, name text)} order by each.place
    on conflict (place) do update set touched_at = excluded.touched_at
    returning place, name, used, log, look_at, steps
),
locked as materialized (
    select case when count(*) >= 0 then {clock} end as at from counters
)
select counters.place, counters.used, counters.log, counters.look_at, s.concurrency, s.rate, s.period, s.weighted,
    counters.steps, locked.at
from counters cross join locked left join {schema}limit_settings s on s.name = counters.name

-- name: lock_counters
-- only: sqlite
-- packed
-- Read counters with what their limits allow and the current time. A missing counter counts as unused. JSON can't hold
-- what another program may have stored in place of numbers and texts, so these are cast.
select json_group_array(json_array(each.place, cast(coalesce(l.used, 0) as integer), cast(coalesce(l.log, '[]') as text),
    cast(l.look_at as integer), cast(s.concurrency as integer), cast(s.rate as integer), cast(s.period as integer),
    cast(s.weighted as integer), cast(l.steps as integer), {clock}))
from {each(:rows, place text, name text)} left join {schema}limits l on l.place = each.place
left join {schema}limit_settings s on s.name = each.name

-- name: store_counters
-- Store counters that this transaction has locked. An upsert, for the reason given at `lock_counters`.
insert into {schema}limits (place, name, used, log, look_at, steps, touched_at)
select each.place, each.name, each.used, each.log, each.look_at, coalesce(each.steps, 0), {stamp}
from {each(:rows, place text, name text, used int, log text, look_at bigint, steps smallint)}
where true
on conflict (place) do update set used = excluded.used, log = excluded.log, look_at = excluded.look_at, steps = excluded.steps,
    touched_at = excluded.touched_at

-- name: return_permits
-- Return permits to counters, locked in order; return when the runs parked on each are to be checked.
--
-- An upsert, for the reason given at `lock_counters`. `touched_at` of the proposed row carries the number of permits,
-- so that a missing counter, which can't have had permits in use, is created unused and old, and gets pruned.
insert into {schema}limits (place, name, touched_at)
select each.place, each.name, each.number from {each(:rows, place text, name text, number int)}
where true
order by each.place
on conflict (place) do update set touched_at = {stamp}, used = case
    when {schema}limits.used > excluded.touched_at then {schema}limits.used - excluded.touched_at else 0 end
returning place, look_at

-- name: claim_admitted
-- only: postgres
-- Claim locked runs that got their permits, or are isolated.
update {schema}runs
set state = 'running', held = null, session = :session, fence = fence + 1, attempt = attempt + 1 - resumed, due_at = null,
    spent = case when resumed = 1 then spent else 0 end, resumed = 0, claimed_at = coalesce(cast(:at as bigint), {stamp}),
    started_at = coalesce(started_at, cast(:at as bigint), {stamp})
where id {among(:rows, id uuid)}
returning id, seq, lane, priority, turn, fence, attempt, failures, deadline - {stamp}, args, options, generation, tenant, parent, spent, undos,
    ending, limits

-- name: claim_admitted
-- only: sqlite
-- Claim locked runs that got their permits, or are isolated.
update {schema}runs
set state = 'running', held = null, session = :session, fence = fence + 1, attempt = attempt + 1 - resumed, due_at = null,
    spent = case when resumed = 1 then spent else 0 end, resumed = 0, claimed_at = coalesce(:at, {now}),
    started_at = coalesce(started_at, :at, {now})
where id {among(:rows, id uuid)}

-- name: read_admitted
-- only: sqlite
-- packed
-- Read the claimed runs.
select json_group_array(json_array(id, seq, lane, priority, turn, fence, attempt, failures, deadline - {now}, args, options, generation,
    tenant, parent, spent, undos, ending, limits))
from {schema}runs where id {among(:rows, id uuid)}

-- name: park_runs
-- Park locked runs whose limit is full: they leave the ready index until a permit returns.
update {schema}runs set held = 'full', parked_on = each.parked_on
from {each(:rows, id uuid, parked_on text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id

-- name: unpark_runs
-- Return the next runs parked on a counter to the ready index; isolated ones stay isolated.
with next as materialized (
    select r.id from {schema}runs r where r.held = 'full' and r.parked_on = :parked_on and {claimable(r)}
    order by priority desc, turn, seq limit cast(:size as bigint) {lock_skip_locked}
)
update {schema}runs set held = case when isolation is not null then 'isolated' end, parked_on = null where id {among(next, id)}
returning id, {notify_workers}

-- name: list_parked
-- List the first runs that are parked on a counter, with their limits and positions.
select r.id, r.limits, r.priority, r.turn, r.seq from {schema}runs r
where r.held = 'full' and r.parked_on = :parked_on and {claimable(r)}
order by r.priority desc, r.turn, r.seq limit cast(:size as bigint)

-- name: unpark_fitting
-- Return the given runs to the ready index, as `unpark_runs` does, if they are parked on this counter.
with next as materialized (
    select r.id from {schema}runs r
    where r.id {among(:rows, id uuid)} and coalesce(r.held, '') = 'full' and r.parked_on = :parked_on {lock_skip_locked}
)
update {schema}runs set held = case when isolation is not null then 'isolated' end, parked_on = null where id {among(next, id)}
returning id, {notify_workers}

-- name: list_waiting_steps
-- List steps that wait for counters, or were woken less than a second ago, in order. Runs that have failed or are cancelled keep
-- their waits for a retry.
select w.target, w.run, w.key, w.since, coalesce(w.pending, 1) from {schema}waits w join {schema}runs r on r.id = w.run
where w.eager = 2 and w.target {among(:rows, target text)} and (w.outcome is null or w.settled_at > {now} - 1000000)
and r.generation = w.generation and r.finished_at is null and r.ending is null
order by w.since limit 500

-- name: pick_waiting_steps
-- Pick and lock the first steps that wait for a counter, and their runs.
select w.run, w.generation, w.key, coalesce(w.pending, 1) from {schema}waits w join {schema}runs r on r.id = w.run
where w.eager = 2 and w.target = :target and w.outcome is null
and r.generation = w.generation and r.finished_at is null and r.ending is null
order by w.since limit cast(:size as bigint) {lock_skip_locked}

-- name: check_waiting_steps
-- Check whether steps wait for a counter, or were woken and haven't tried again, and whether any of them isn't woken.
select (select 1 from {schema}waits w where w.eager = 2 and w.target = :target limit 1), (
    select 1 from {schema}waits w join {schema}runs r on r.id = w.run
    where w.eager = 2 and w.target = :target and w.outcome is null
    and r.generation = w.generation and r.finished_at is null and r.ending is null limit 1
)

-- name: pick_due_counters
-- Pick and lock counters whose parked runs are to be checked.
select place from {schema}limits where look_at is not null and look_at <= {now}
order by look_at limit 500 {lock_skip_locked}

-- name: has_parked
-- Check whether any run is parked on a counter.
select 1 from {schema}runs where held = 'full' and parked_on = :parked_on limit 1

-- name: has_claimable_parked
-- Check whether any run is parked on a counter and not paused.
select 1 from {schema}runs r where r.held = 'full' and r.parked_on = :parked_on and {claimable(r)} limit 1

-- name: list_limits
-- List the limits.
select name, concurrency, rate, period, declared_at, weighted, set_at, set_by, declared_concurrency, declared_rate, declared_period
from {schema}limit_settings order by name

-- name: read_limit
-- Read one limit.
select name, concurrency, rate, period, declared_at, weighted, set_at, set_by, declared_concurrency, declared_rate, declared_period
from {schema}limit_settings where name = :name

-- name: list_counters
-- List counters that are in use or waited for, the busiest first, with up to a thousand parked runs each counted.
select l.place, l.used, l.log, l.look_at, s.concurrency, s.rate, s.period, {clock},
    (select count(*) from (select 1 from {schema}runs r where r.held = 'full' and r.parked_on = l.place limit 1000) parked),
    (select count(*) from (select 1 from {schema}waits w where w.eager = 2 and w.target = 'limit:' || l.place and w.outcome is null limit 1000) steps)
from {schema}limits l left join {schema}limit_settings s on s.name = l.name
where (cast(:name as text) is null or l.name = cast(:name as text)) and (l.used > 0 or l.look_at is not null or l.log <> '[]')
order by l.used desc, l.place limit cast(:size as bigint)

-- name: read_counter
-- Read one counter.
with one as materialized (
    select place, name, used, log, look_at from {schema}limits where place = cast(:place as text)
)
select one.place, one.used, one.log, one.look_at, s.concurrency, s.rate, s.period, {clock}, 0, 0
from one left join {schema}limit_settings s on s.name = one.name

-- name: list_permit_holders
-- List the runs of sessions that hold permits of a counter or of a limit, and the steps of runs that do.
--
-- `place` is the start of JSON text, as it appears in the limits of runs. Those aren't parsed, because they may be corrupt.
with sessions as materialized (
    select session from {schema}workers
),
claimed as materialized (
    select r.id, r.lane, r.session, r.claimed_at, r.tenant, r.limits from {schema}runs r where r.session {among(sessions, session)}
),
holders as (
    select claimed.id, claimed.lane, claimed.session, claimed.tenant, claimed.limits, cast(null as text) as step, claimed.claimed_at as since
    from claimed where claimed.limits is not null and replace(claimed.limits, cast(:place as text), '') <> claimed.limits
    union all
    select claimed.id, claimed.lane, claimed.session, claimed.tenant, p.limits, p.key, p.taken_at
    from claimed {lookup(step_permits p, p.run = claimed.id)} where replace(p.limits, cast(:place as text), '') <> p.limits
)
select h.id, l.task, h.session, h.tenant, h.limits, h.step, h.since from holders h join {schema}lanes l on l.id = h.lane
order by h.since, h.id limit cast(:size as bigint)
