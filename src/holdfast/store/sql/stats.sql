-- name: aggregate_ended
-- Count runs that ended within a time by span, lane, state, and histogram buckets of their wait and duration.
--
-- The wait is the one before the last claim. A run that was cancelled while it was ready again has none.
-- `policy/histogram.py` defines the buckets. Logarithms of numeric values would cost several times as much as all the
-- rest.
select finished_at - finished_at % cast(:span as bigint) as at, lane, state,
    case when started_at is not null and claimed_at >= coalesce(ready_at, created_at) then
        cast(floor(cast(5 as double precision) * ln(cast(1 as double precision) + (cast(claimed_at as double precision) - cast(coalesce(ready_at, created_at) as double precision)) / cast(1000 as double precision))) as int)
        end as waited,
    case when started_at is not null then
        cast(floor(cast(5 as double precision) * ln(cast(1 as double precision) + case when finished_at > started_at then cast(finished_at as double precision) - cast(started_at as double precision) else cast(0 as double precision) end / cast(1000 as double precision))) as int)
        end as took,
    count(*)
from {schema}runs
where finished_at > 0 and finished_at >= cast(:since as bigint) and finished_at < cast(:until as bigint)
group by 1, 2, 3, 4, 5

-- name: add_stats
-- Insert statistics. Those that another worker has inserted stay.
insert into {schema}tallies (span, at, lane, state, runs, waits, takes)
select each.span, each.at, each.lane, each.state, each.runs, each.waits, each.takes
from {each(:rows, span bigint, at bigint, lane bigint, state text, runs bigint, waits text, takes text)}
where true
on conflict do nothing

-- name: last_stats
-- Read the start of the last aggregated span.
select max(at) from {schema}tallies where span = cast(:span as bigint)

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
