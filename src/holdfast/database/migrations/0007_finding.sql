-- Finding runs among millions, newest first: by how they ended, by queue and task, by tenant, by when they ended. Only ended runs stand in
-- these, each once: unfinished ones have the indexes that work is done by. What says so is written as no other statement has it, so that no
-- planner with old statistics takes these indexes for another purpose.

create index holdfast_runs_unwell on {schema}runs (state, id) where coalesce(finished_at, 0) > 0 and state <> 'done';
create index holdfast_runs_ended on {schema}runs (lane, id) where coalesce(finished_at, 0) > 0;
create index holdfast_runs_tenant on {schema}runs (tenant, id) where coalesce(finished_at, 0) > 0 and tenant is not null;
create index holdfast_runs_finished on {schema}runs (finished_at) where finished_at > 0;

-- How many runs ended in a minute, or an hour, by lane and state, and how long they waited and took, as histograms: [[step, count], …].
-- span: its length in microseconds; at: its beginning. Written by housekeeping when it is over, so that no end of a run pays for it.
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
