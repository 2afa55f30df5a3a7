-- Indexes for searching millions of runs, newest first: by final state, queue and task, tenant, and end time. They contain only finished
-- runs; unfinished ones have the indexes that workers use. Their condition is worded as in no other statement, so that a planner with
-- old statistics doesn't use them for anything else.

create index holdfast_runs_unwell on {schema}runs (state, id) where coalesce(finished_at, 0) > 0 and state <> 'done';
create index holdfast_runs_ended on {schema}runs (lane, id) where coalesce(finished_at, 0) > 0;
create index holdfast_runs_tenant on {schema}runs (tenant, id) where coalesce(finished_at, 0) > 0 and tenant is not null;
create index holdfast_runs_finished on {schema}runs (finished_at) where finished_at > 0;

-- Finished runs per minute and per hour, by lane and state, with waiting and running times as histograms: [[bucket, count], …].
-- span: length of the period in microseconds; at: its start. Housekeeping writes it afterwards, so that finishing a run costs nothing more.
create table {schema}tallies (
    span bigint not null,
    at bigint not null,
    lane bigint not null,
    state text not null,
    runs bigint not null,
    waits text not null,
    takes text not null,
    primary key (span, at, lane, state)
) {clustered};

create view {schema}readable_tallies as
select t.span / 1000000 as seconds, {time(t.at)} as at, l.queue, l.task, t.state, t.runs, t.waits, t.takes
from {schema}tallies t join {schema}lanes l on l.id = t.lane;
