-- name: any_ready
-- Whether a claim would find anything in these lanes; reads only, so that an idle worker takes no lock.
select 1 from {each(:lanes, lane bigint)}
where each.lane not in (select id from {schema}paused_lanes)
and (
    select r.seq from {schema}runs r where r.lane = each.lane and r.state = 'ready' and r.held is null
    order by r.priority desc, r.turn, r.seq limit 1
) is not null
limit 1

-- name: limited_heads
-- Those of these lanes whose first ready run has limits.
select each.lane from {each(:lanes, lane bigint)}
where (
    select case when r.limits is null then 0 else 1 end from {schema}runs r
    where r.lane = each.lane and r.state = 'ready' and r.held is null
    order by r.priority desc, r.turn, r.seq limit 1
) = 1

-- name: claim
-- only: postgres
-- The first ready runs of the lanes behind places in their order, and those more urgent than these, become this session's. What was claimed
-- stays in the index until it is cleaned up, and a claim that begins at the front walks over all of it. Candidates are read per lane without
-- locks, merged, then locked: twice as many are read as wanted, because another worker may be at the first ones, and no more are locked
-- (bench jobs with two workers). From one to the next by the place of the row, which no statistics can turn round: what changed since the
-- statement began is passed over. One statement, because round trips decide; the time is asked for once, not for each row (bench jobs).
-- Runs with limits aren't claimed so: their lane wasn't known to have any. Limits of rows are literals: a parameter makes the generic plan guess a tenth of the table.
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
candidates as materialized (
    select ready.place
    from alive cross join {each(:places, lane bigint, above bigint, priority bigint, turn bigint, seq bigint)} cross join lateral (
        (
            select r.ctid as place, r.priority, r.turn, r.seq from {schema}runs r
            where r.lane = each.lane and r.state = 'ready' and r.held is null and r.priority > each.above
            order by r.priority desc, r.turn, r.seq limit {double_limit}
        ) union all (
            select r.ctid as place, r.priority, r.turn, r.seq from {schema}runs r
            where r.lane = each.lane and r.state = 'ready' and r.held is null
            and r.priority = each.priority and (r.turn, r.seq) > (each.turn, each.seq)
            order by r.turn, r.seq limit {double_limit}
        )
    ) ready
    where each.lane not in (select id from {schema}paused_lanes)
    order by ready.priority desc, ready.turn, ready.seq limit {double_limit}
),
locked as materialized (
    select r.* from candidates cross join lateral (
        select x.ctid as place, x.state, x.held, x.limits from {schema}runs x where x.ctid = candidates.place offset 0 {lock_free}
    ) r
    where r.state = 'ready' and r.held is null and r.limits is null limit {limit}
)
update {schema}runs
set state = 'running', session = :session, fence = fence + 1, attempt = attempt + 1 - resumed, due_at = null,
    spent = case when resumed = 1 then spent else 0 end, resumed = 0,
    claimed_at = {stamp}, started_at = coalesce(started_at, {stamp})
where ctid = any(array(select place from locked))
returning id, seq, lane, priority, turn, fence, attempt, failures, deadline - {stamp}, args, options, generation, tenant, parent,
    spent, undos, ending

-- name: claimable
-- only: sqlite
-- packed
-- The first ready runs of the lanes, as they will be when they are claimed; and of each a number that grows with all that happens to it:
-- whatever changes something of a ready run that is read here has to let its fence or its records grow.
select json_group_array(json_array(r.id, r.seq, r.lane, r.priority, r.turn, r.fence + 1, r.attempt + 1 - r.resumed, r.failures,
    r.deadline - {now}, r.args, r.options, r.generation, r.tenant, r.parent, case when r.resumed = 1 then r.spent else 0 end, r.undos,
    r.ending, r.limits, 1000 * r.seq + r.fence + r.records))
from (
    select y.seq from {each(:lanes, lane bigint)} cross join {schema}runs y
    where each.lane not in (select id from {schema}paused_lanes) and y.seq in (
        select x.seq from {schema}runs x where x.lane = each.lane and x.state = 'ready' and x.held is null
        order by x.priority desc, x.turn, x.seq limit :size
    )
    order by y.priority desc, y.turn, y.seq limit :size
) first cross join {schema}runs r where r.seq = first.seq

-- name: claim
-- only: sqlite
-- counted
-- These runs become the session's, if nothing happened since they were looked for without a lock: then the numbers of all that is ready up
-- to the place of the last of them make the same sum. A number grows with whatever happens to its run, so where all of them are taken,
-- nothing did; where some went and others came whose numbers make up for them, fewer are taken than were picked. It is the one statement
-- that keeps others from writing (bench jobs). Runs with limits aren't claimed so: their lane wasn't known to have any.
update {schema}runs
set state = 'running', session = :session, fence = fence + 1, attempt = attempt + 1 - resumed, due_at = null,
    spent = case when resumed = 1 then spent else 0 end, resumed = 0, claimed_at = {now}, started_at = coalesce(started_at, {now})
where seq in (select value from json_each(:seqs)) and state = 'ready' and held is null and limits is null
and :sum = (
    select sum((
        select total(1000 * x.seq + x.fence + x.records) from {schema}runs x indexed by holdfast_runs_ready
        where x.lane = each.lane and x.state = 'ready' and x.held is null and x.priority > :priority
    ) + (
        select total(1000 * x.seq + x.fence + x.records) from {schema}runs x indexed by holdfast_runs_ready
        where x.lane = each.lane and x.state = 'ready' and x.held is null and x.priority = :priority and x.turn < :turn
    ) + (
        select total(1000 * x.seq + x.fence + x.records) from {schema}runs x indexed by holdfast_runs_ready
        where x.lane = each.lane and x.state = 'ready' and x.held is null and x.priority = :priority and x.turn = :turn and x.seq <= :seq
    ))
    from {each(:lanes, lane bigint)} where each.lane not in (select id from {schema}paused_lanes)
)
and exists (select 1 from {schema}workers where session = :session and lease_until > {clock})

-- name: taken
-- only: sqlite
-- packed
-- Those of these runs that the session's last claim took, as `claimable` gives them.
select json_group_array(json_array(r.id, r.seq, r.lane, r.priority, r.turn, r.fence, r.attempt, r.failures, r.deadline - {now}, r.args,
    r.options, r.generation, r.tenant, r.parent, r.spent, r.undos, r.ending, r.limits))
from {schema}runs r where r.seq in (select value from json_each(:seqs)) and r.session = :session and r.state = 'running'

-- name: any_isolated
-- Whether isolated runs of these lanes wait for a process of their own.
select 1 from {schema}runs r
where r.held = 'isolated' and r.state = 'ready' and r.lane {among(:lanes, lane bigint)} and r.lane not in (select id from {schema}paused_lanes)
limit 1

-- name: isolated_candidates
-- The first isolated run, and those that may share a process with it: runs with the same bound, as many as it allows. One without a bound
-- that makes sense runs alone. Runs that died least often go first: one that keeps dying without being charged must not keep the others
-- waiting.
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
first as materialized (
    select r.seq, case when r.isolation > 0 then r.isolation else 1 end as bound from {schema}runs r
    where r.held = 'isolated' and r.state = 'ready' and r.lane {among(:lanes, lane bigint)}
    and r.lane not in (select id from {schema}paused_lanes)
    order by r.deaths, r.seq limit 1
)
select r.id, r.limits, (select bound from first) from {schema}runs r
where r.held = 'isolated' and r.state = 'ready' and r.lane {among(:lanes, lane bigint)}
and r.lane not in (select id from {schema}paused_lanes)
and (r.isolation = (select bound from first) or r.seq = (select seq from first)) and exists (select 1 from alive)
order by r.deaths, r.seq limit cast(:size as bigint) {lock_free}

-- name: busy_lanes
-- Whether anything in these lanes is ready and not paused, isolated, or running: the more expensive questions are asked where the first
-- says no. Written so that no statistics can make the planner walk the table.
select 1 where (
    select 1 from {each(:lanes, lane bigint)}
    where each.lane not in (select id from {schema}paused_lanes) and (
        select r.seq from {schema}runs r where r.lane = each.lane and r.state = 'ready' and r.held is null
        order by r.priority desc, r.turn, r.seq limit 1
    ) is not null
    limit 1
) is not null or (
    select 1 from {schema}runs r
    where r.held = 'isolated' and r.lane {among(:lanes, lane bigint)} and r.lane not in (select id from {schema}paused_lanes) limit 1
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

-- name: still_held
-- Of these runs, read those that are running in this session, with their fences. Read-only: heartbeats poll it every 0.4 s.
-- By the primary key: the index of a session's runs keeps an entry of every run that it ever claimed until vacuum, and an old snapshot
-- can keep millions. coalesce keeps the planner from using the index of a session's runs (decision 3).
select id, fence from {schema}runs
where id {among(:rows, id uuid)} and coalesce(session, '') = :session and state = 'running'

-- name: owned
-- The runs that a session holds, by the database's account.
select id, fence, state from {schema}runs where session = :session
