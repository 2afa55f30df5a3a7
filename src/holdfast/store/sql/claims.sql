-- name: has_ready
-- Check whether a claim would find anything in these lanes. Read-only, so that an idle worker takes no lock.
select 1 from {each(:lanes, lane bigint)}
where each.lane not in (select id from {schema}paused_lanes)
and (
    select r.seq from {schema}runs r where r.lane = each.lane and r.state = 'ready' and r.held is null and {claimable(r)}
    order by r.priority desc, r.turn, r.seq limit 1
) is not null
limit 1

-- name: find_waiting_lanes
-- List those of these lanes in which a run has been ready for an age.
--
-- It reads the first hundred runs of a lane in the order of claims, so that a backlog costs little.
select each.lane from {each(:lanes, lane bigint)}
where (
    select min(coalesce(first.ready_at, first.created_at)) from (
        select r.ready_at, r.created_at from {schema}runs r
        where r.lane = each.lane and r.state = 'ready' and r.held is null
        order by r.priority desc, r.turn, r.seq limit 100
    ) first
) <= {now} - cast(:age as bigint)

-- name: list_ready_lanes
-- List the lanes between these with something to claim, each found by one descent into the ready index.
--
-- The caller leaves out lanes that it knows, because the index entries of their claimed runs remain until vacuum.
with recursive present as (
    select (
        select r.lane from {schema}runs r where r.state = 'ready' and r.held is null and r.lane > each.above and r.lane < each.below
        order by r.lane limit 1
    ) as lane, each.below from {each(:gaps, above bigint, below bigint)}
    union all
    select (
        select r.lane from {schema}runs r where r.state = 'ready' and r.held is null and r.lane > present.lane and r.lane < present.below
        order by r.lane limit 1
    ), present.below from present where present.lane is not null
)
select lane from present where lane is not null and lane not in (select id from {schema}paused_lanes)

-- name: sort_lanes
-- Sort lanes by their first ready run; leave out those without any.
with heads as materialized (
    select (
        select x.id from {schema}runs x where x.lane = each.lane and x.state = 'ready' and x.held is null
        order by x.priority desc, x.turn, x.seq limit 1
    ) as id from {each(:lanes, lane bigint)}
)
select r.lane from {schema}runs r where r.id {among(heads, id)} order by r.priority desc, r.turn, r.seq

-- name: find_limited_heads
-- Find those of these lanes whose first ready run has limits.
select each.lane from {each(:lanes, lane bigint)}
where (
    select case when r.limits is null then 0 else 1 end from {schema}runs r
    where r.lane = each.lane and r.state = 'ready' and r.held is null
    order by r.priority desc, r.turn, r.seq limit 1
) = 1

-- part: lock_and_claim
-- Lock the candidates, check them again under the lock, and claim them.
locked as materialized (
    select r.* from candidates cross join lateral (
        select x.ctid as tid, x.state, x.held, x.limits, x.start_by, x.started_at, x.paused_at from {schema}runs x
        where x.ctid = candidates.tid offset 0 {lock_skip_locked}
    ) r
    where r.state = 'ready' and r.held is null and r.limits is null and r.paused_at is null
    and (r.start_by is null or r.start_by > {stamp} or r.started_at is not null)
    limit {limit}
)
update {schema}runs
set state = 'running', session = :session, fence = fence + 1, attempt = attempt + 1 - resumed, due_at = null,
    spent = case when resumed = 1 then spent else 0 end, resumed = 0,
    claimed_at = {stamp}, started_at = coalesce(started_at, {stamp})
where ctid = any(array(select tid from locked))
returning id, seq, lane, priority, turn, fence, attempt, failures, deadline - {stamp}, args, options, generation, tenant, parent,
    spent, undos, ending, limits, case when parent is not null then cast(json_build_array(root, spawn_key, place, node) as text) end,
    (select count(*) from candidates)

-- name: claim
-- only: postgres
-- Claim up to {limit} ready runs of the given ranges of lanes for this session, in order of priority, turn and
-- sequence.
--
-- 1. `alive` locks the session row and checks its lease; without it nothing is claimed.
-- 2. `candidates` reads each range from the ready index without locking; twice the limit, because another worker may hold
--    the first rows.
-- 3. `locked` locks candidates by ctid with SKIP LOCKED and re-checks their state. No statistics can reorder a lookup by
--    ctid, and a row that changed since the statement began is skipped.
-- 4. The update assigns session and fence. The number of candidates tells whether other workers were faster.
--
-- Runs with limits are skipped: `claim_limited` claims those, once their lane is marked. One statement, because round
-- trips dominate small claims; the time is computed once, not per row (bench: jobs, two workers). LIMITs are literals:
-- a parameter makes the generic plan assume a tenth of the table.
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
candidates as materialized (
    select ready.tid
    from alive cross join {each(:ranges, lane bigint, above bigint, priority bigint, turn bigint, seq bigint)} cross join lateral (
        (
            select r.ctid as tid, r.priority, r.turn, r.seq from {schema}runs r
            where r.lane = each.lane and r.state = 'ready' and r.held is null and r.priority > each.above
            and {claimable(r)}
            order by r.priority desc, r.turn, r.seq limit {double_limit}
        ) union all (
            select r.ctid as tid, r.priority, r.turn, r.seq from {schema}runs r
            where r.lane = each.lane and r.state = 'ready' and r.held is null
            and r.priority = each.priority and (r.turn, r.seq) > (each.turn, each.seq) and {claimable(r)}
            order by r.turn, r.seq limit {double_limit}
        )
    ) ready
    where each.lane not in (select id from {schema}paused_lanes)
    order by ready.priority desc, ready.turn, ready.seq limit {double_limit}
),
{part(lock_and_claim)}

-- name: claim_share
-- only: postgres
-- Claim as `claim` does, while many workers claim at once: all would pick the same rows and get few of them.
--
-- Of a window of {wide_limit} rows, those of the share come first, and those that another transaction seems to have
-- locked come last. A statement of its own, because `claim` must stay small (bench: workers, latency).
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
candidates as materialized (
    select ready.tid
    from alive cross join {each(:ranges, lane bigint, above bigint, priority bigint, turn bigint, seq bigint, share bigint)} cross join lateral (
        (
            select near.tid, near.priority, near.turn, near.seq,
                case when near.locker <> cast('0' as xid) then 2 when near.seq % cast(16 as bigint) <> each.share then 1 else 0 end as preference
            from (
                (
                    select r.ctid as tid, r.xmax as locker, r.priority, r.turn, r.seq from {schema}runs r
                    where r.lane = each.lane and r.state = 'ready' and r.held is null and r.priority > each.above
                    and {claimable(r)}
                    order by r.priority desc, r.turn, r.seq limit {wide_limit}
                ) union all (
                    select r.ctid as tid, r.xmax as locker, r.priority, r.turn, r.seq from {schema}runs r
                    where r.lane = each.lane and r.state = 'ready' and r.held is null
                    and r.priority = each.priority and (r.turn, r.seq) > (each.turn, each.seq) and {claimable(r)}
                    order by r.turn, r.seq limit {wide_limit}
                )
            ) near
            order by near.priority desc, 5, near.turn, near.seq limit {double_limit}
        )
    ) ready
    where each.lane not in (select id from {schema}paused_lanes)
    order by ready.priority desc, ready.preference, ready.turn, ready.seq limit {double_limit}
),
{part(lock_and_claim)}

-- name: pick_claimable
-- only: sqlite
-- packed
-- Pick the first ready runs of the lanes without a lock, as they will be once claimed.
--
-- The limits of a run that should have started by now are empty: it isn't claimed. The last column is the run's version. A statement that changes a column of a ready run that is read here must raise
-- its fence or its records. docs/claims.md explains the check.
select json_group_array(json_array(r.id, r.seq, r.lane, r.priority, r.turn, r.fence + 1, r.attempt + 1 - r.resumed, r.failures,
    r.deadline - {now}, r.args, r.options, r.generation, r.tenant, r.parent, case when r.resumed = 1 then r.spent else 0 end, r.undos,
    r.ending, case when r.start_by <= {now} and r.started_at is null then '' else r.limits end, 1000 * r.seq + r.fence + r.records))
from (
    select y.seq from {each(:lanes, lane bigint)} cross join {schema}runs y
    where each.lane not in (select id from {schema}paused_lanes) and y.seq in (
        select x.seq from {schema}runs x where x.lane = each.lane and x.state = 'ready' and x.held is null and {claimable(x)}
        order by x.priority desc, x.turn, x.seq limit :size
    )
    order by y.priority desc, y.turn, y.seq limit :size
) first cross join {schema}runs r where r.seq = first.seq

-- name: claim
-- only: sqlite
-- counted
-- Claim the picked runs, if the sum of the versions of all ready runs up to the last of them is still the same.
--
-- This is the only statement of a claim that keeps others from writing (bench: jobs). docs/claims.md proves that the
-- check is sound. Runs with limits are skipped, as on PostgreSQL.
update {schema}runs
set state = 'running', session = :session, fence = fence + 1, attempt = attempt + 1 - resumed, due_at = null,
    spent = case when resumed = 1 then spent else 0 end, resumed = 0, claimed_at = {now}, started_at = coalesce(started_at, {now})
where seq in (select value from json_each(:seqs)) and state = 'ready' and held is null and limits is null
and {claimable({schema}runs)}
and :sum = (
    select sum((
        select total(1000 * x.seq + x.fence + x.records) from {schema}runs x indexed by holdfast_runs_ready
        where x.lane = each.lane and x.state = 'ready' and x.held is null and x.priority > :priority
        and {claimable(x)}
    ) + (
        select total(1000 * x.seq + x.fence + x.records) from {schema}runs x indexed by holdfast_runs_ready
        where x.lane = each.lane and x.state = 'ready' and x.held is null and x.priority = :priority and x.turn < :turn
        and {claimable(x)}
    ) + (
        select total(1000 * x.seq + x.fence + x.records) from {schema}runs x indexed by holdfast_runs_ready
        where x.lane = each.lane and x.state = 'ready' and x.held is null and x.priority = :priority and x.turn = :turn and x.seq <= :seq
        and {claimable(x)}
    ))
    from {each(:lanes, lane bigint)} where each.lane not in (select id from {schema}paused_lanes)
)
and exists (select 1 from {schema}workers where session = :session and lease_until > {clock})

-- name: read_claimed
-- only: sqlite
-- packed
-- Read those of these runs that this session has just claimed, with the columns of `pick_claimable`.
select json_group_array(json_array(r.id, r.seq, r.lane, r.priority, r.turn, r.fence, r.attempt, r.failures, r.deadline - {now}, r.args,
    r.options, r.generation, r.tenant, r.parent, r.spent, r.undos, r.ending, r.limits))
from {schema}runs r where r.seq in (select value from json_each(:seqs)) and r.session = :session and r.state = 'running'

-- name: has_isolated
-- Check whether isolated runs of these lanes wait for a process of their own.
select 1 from {schema}runs r
where r.held = 'isolated' and r.state = 'ready' and r.lane {among(:lanes, lane bigint)} and r.lane not in (select id from {schema}paused_lanes)
and {claimable(r)}
limit 1

-- name: pick_isolated
-- Pick the first isolated run and those that may share a process with it: runs with the same bound, up to that many.
--
-- A run without a valid bound runs alone. Runs that died least often come first, so that a run that keeps dying without
-- being charged doesn't keep the others waiting.
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
first as materialized (
    select r.seq, case when r.isolation > 0 then r.isolation else 1 end as bound from {schema}runs r
    where r.held = 'isolated' and r.state = 'ready' and r.lane {among(:lanes, lane bigint)}
    and r.lane not in (select id from {schema}paused_lanes) and {claimable(r)}
    order by r.deaths, r.seq limit 1
)
select r.id, r.limits, (select bound from first) from {schema}runs r
where r.held = 'isolated' and r.state = 'ready' and r.lane {among(:lanes, lane bigint)}
and r.lane not in (select id from {schema}paused_lanes) and {claimable(r)}
and (r.isolation = (select bound from first) or r.seq = (select seq from first)) and exists (select 1 from alive)
order by r.deaths, r.seq limit cast(:size as bigint) {lock_skip_locked}

-- name: has_active
-- Check whether anything in these lanes is ready and not paused, isolated, running, or about to succeed a run of its
-- unique name that has ended.
--
-- The expensive checks come last and are skipped if an earlier one succeeds. Written so that no statistics can make the
-- planner scan the table.
select 1 where (
    select 1 from {each(:lanes, lane bigint)}
    where each.lane not in (select id from {schema}paused_lanes) and (
        select r.seq from {schema}runs r where r.lane = each.lane and r.state = 'ready' and r.held is null and {claimable(r)}
        order by r.priority desc, r.turn, r.seq limit 1
    ) is not null
    limit 1
) is not null or (
    select 1 from {schema}runs r
    where r.held = 'isolated' and r.lane {among(:lanes, lane bigint)} and r.lane not in (select id from {schema}paused_lanes)
    and {claimable(r)} limit 1
) is not null or (
    select 1 from {schema}runs r
    where r.held = 'queued' and r.state = 'ready'
    and r.lane {among(:lanes, lane bigint)} and r.lane not in (select id from {schema}paused_lanes) and (
        select 1 from {schema}runs holder
        where holder.unique_name = substr(r.unique_name, 1, length(r.unique_name) - 1) and holder.finished_at is null limit 1
    ) is null limit 1
) is not null or (
    select 1 from {schema}runs r
    where r.held = 'quiescing' and r.state = 'ready' and r.session is null
    and r.lane {among(:lanes, lane bigint)} and r.lane not in (select id from {schema}paused_lanes) and (
        select 1 from {schema}runs old
        where old.unique_name = r.unique_name and old.finished_at is not null and old.session is not null limit 1
    ) is null limit 1
) is not null or (
    select 1 from {each(:lanes, lane bigint)}
    where (
        select 1 from {schema}workers w
        where (
            select r.seq from {schema}runs r
            where r.session = w.session and r.lane = each.lane
            and (r.state = 'running' or (r.state = 'ready' and r.lane not in (select id from {schema}paused_lanes))) limit 1
        ) is not null
        limit 1
    ) is not null
    limit 1
) is not null

-- name: read_waits
-- Read when claimed runs became ready and when they were claimed.
select id, coalesce(ready_at, created_at), claimed_at from {schema}runs where id {among(:rows, id uuid)} and claimed_at is not null

-- name: find_running
-- Find those of these runs that are running in this session, with their fences, and whether each is paused. The heartbeat polls this every 0.4 s.
--
-- By primary key: the index of a session's runs keeps an entry of every run that it ever claimed until vacuum, and an
-- old snapshot can keep millions. coalesce keeps the planner from using that index (decision 3).
select id, fence, case when paused_at is null then 0 else 1 end from {schema}runs
where id {among(:rows, id uuid)} and coalesce(session, '') = :session and state = 'running'

-- name: find_suspended
-- Find those of these runs that no session has and that haven't ended, with their fences.
select id, fence from {schema}runs
where id {among(:rows, id uuid)} and state not in ('running', 'done', 'failed', 'cancelled', 'skipped')

-- name: list_owned
-- List the runs whose row names a session.
select id, fence, state from {schema}runs where session = :session
