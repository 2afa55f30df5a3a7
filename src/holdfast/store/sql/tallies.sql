-- name: tally
-- Runs that ended within a time, counted by span, lane, state, and the steps of how long they waited and took (`policy/histogram.py`).
-- (Logarithms of exact numbers would cost several times as much as all else.)
select finished_at - finished_at % cast(:span as bigint) as at, lane, state,
    case when started_at is not null then
        cast(floor(5 * ln(1 + cast(case when started_at > created_at then started_at - created_at else 0 end as double precision) / 1000)) as int)
        end as waited,
    case when started_at is not null then
        cast(floor(5 * ln(1 + cast(case when finished_at > started_at then finished_at - started_at else 0 end as double precision) / 1000)) as int)
        end as took,
    count(*)
from {schema}runs
where finished_at > 0 and finished_at >= cast(:since as bigint) and finished_at < cast(:until as bigint)
group by 1, 2, 3, 4, 5

-- name: add_tallies
-- What was counted. What somebody else has counted already stays.
insert into {schema}tallies (span, at, lane, state, runs, waits, takes)
select each.span, each.at, each.lane, each.state, each.runs, each.waits, each.takes
from {each(:rows, span bigint, at bigint, lane bigint, state text, runs bigint, waits text, takes text)}
where true
on conflict do nothing

-- name: last_tally
-- The beginning of the last span that was counted.
select max(at) from {schema}tallies where span = cast(:span as bigint)

-- name: read_tallies
-- What was counted within a time.
select at, lane, state, runs, waits, takes from {schema}tallies
where span = cast(:span as bigint) and at >= cast(:since as bigint) and at < cast(:until as bigint)
order by at, lane, state

-- name: prune_tallies
-- Counts that are old.
delete from {schema}tallies where span = cast(:span as bigint) and at < {now} - cast(:age as bigint)
