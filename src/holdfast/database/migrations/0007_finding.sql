-- Finding runs among millions, newest first: by how they ended, by queue and task, by tenant, by when they ended. Only ended runs stand in
-- these, each once: unfinished ones have the indexes that work is done by. What says so is written as no other statement has it, so that no
-- planner with old statistics takes these indexes for another purpose.

create index holdfast_runs_unwell on {schema}runs (state, id) where coalesce(finished_at, 0) > 0 and state <> 'done';
create index holdfast_runs_ended on {schema}runs (lane, id) where coalesce(finished_at, 0) > 0;
create index holdfast_runs_tenant on {schema}runs (tenant, id) where coalesce(finished_at, 0) > 0 and tenant is not null;
create index holdfast_runs_finished on {schema}runs (finished_at) where finished_at > 0;
