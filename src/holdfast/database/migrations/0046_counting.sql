-- Count unfinished runs by lane, list scheduled runs by time and failures of a task or tenant from the index alone. Each index replaces one
-- of the same runs that has fewer columns, so no statement maintains more entries than before.

drop index {in_schema}holdfast_runs_asleep;
create index holdfast_runs_asleep on {schema}runs (lane, state) where state in ('waiting', 'blocked');

drop index {in_schema}holdfast_runs_due;
create index holdfast_runs_due on {schema}runs (due_at, id, lane) where state = 'scheduled';

drop index {in_schema}holdfast_runs_unwell;
create index holdfast_runs_unwell on {schema}runs (state, id, lane, tenant) where coalesce(finished_at, 0) > 0 and state <> 'done';
