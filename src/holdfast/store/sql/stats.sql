-- name: last_stats
-- Read the start of the last aggregated span.
select max(at) from {schema}tallies where span = cast(:span as bigint)

-- part: ended_by_span
select r.finished_at - r.finished_at % cast(:span as bigint) as at, r.lane, r.state,
    case when r.started_at is not null and r.claimed_at >= coalesce(r.ready_at, r.created_at) then
        cast(floor(cast(5 as double precision) * ln(cast(1 as double precision) + (cast(r.claimed_at as double precision) - cast(coalesce(r.ready_at, r.created_at) as double precision)) / cast(1000 as double precision))) as int)
        end as waited,
    case when r.started_at is not null then
        cast(floor(cast(5 as double precision) * ln(cast(1 as double precision) + case when r.finished_at > r.started_at then cast(r.finished_at as double precision) - cast(r.started_at as double precision) else cast(0 as double precision) end / cast(1000 as double precision))) as int)
        end as took,
    count(*)

-- part: ended_within
finished_at > 0 and finished_at >= cast(:since as bigint) and finished_at < cast(:until as bigint)

-- name: aggregate_ended
-- Count runs that ended within a time by span, lane, state, and histogram buckets of their wait and duration.
--
-- The wait is the one before the last claim. A run that was cancelled while it was ready again has none.
-- `policy/histogram.py` defines the buckets. Logarithms of numeric values would cost several times as much as all the
-- rest.
{part(ended_by_span)}
from {schema}runs r
where {part(ended_within)}
group by 1, 2, 3, 4, 5

-- name: aggregate_last_ended
-- Count those that ended last in the same way, up to {limit}.
{part(ended_by_span)}
from (
    select finished_at, lane, state, started_at, claimed_at, ready_at, created_at from {schema}runs
    where {part(ended_within)} order by finished_at desc limit {limit}
) r
group by 1, 2, 3, 4, 5

-- name: aggregate_ends_of_tenant
-- Count the newest ended runs of a tenant in the same way, up to {limit}, with the time at which the first was created.
--
-- By the index of ended runs by tenant, whose ids sort by creation. Those that ended before the time count as ended at 0,
-- so that the sum of the counts says whether there may be more.
{part(ended_by_span)}, min(r.created_at)
from (
    select case when finished_at >= cast(:since as bigint) then finished_at else 0 end as finished_at, lane, state, started_at, claimed_at,
        ready_at, created_at
    from {schema}runs
    where coalesce(finished_at, 0) > 0 and tenant is not null
    and (tenant, id) < (cast(:tenant as text), cast(:before as {uuid})) and (tenant, id) > (cast(:tenant as text), cast(:behind as {uuid}))
    order by tenant desc, id desc limit {limit}
) r
group by 1, 2, 3, 4, 5

-- name: add_stats
-- Insert statistics. Those that another worker has inserted stay.
insert into {schema}tallies (span, at, lane, state, runs, waits, takes)
select each.span, each.at, each.lane, each.state, each.runs, each.waits, each.takes
from {each(:rows, span bigint, at bigint, lane bigint, state text, runs bigint, waits text, takes text)}
where true
on conflict do nothing

-- name: read_stats
-- Read the statistics of a time.
select at, lane, state, runs, waits, takes from {schema}tallies
where span = cast(:span as bigint) and at >= cast(:since as bigint) and at < cast(:until as bigint)
order by at, lane, state

-- name: read_stats_of_lanes
-- Read the statistics of some lanes.
select at, lane, state, runs, waits, takes from {schema}tallies
where span = cast(:span as bigint) and at >= cast(:since as bigint) and at < cast(:until as bigint)
    and lane {among(:rows, lane bigint)}
order by at, lane, state

-- name: prune_stats
-- Delete old statistics.
delete from {schema}tallies where span = cast(:span as bigint) and at < {now} - cast(:age as bigint)
