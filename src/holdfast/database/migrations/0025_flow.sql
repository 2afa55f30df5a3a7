-- Debounced runs.

-- debounce: the name under which calls are collected into this run until it starts; null for most runs.
alter table {schema}runs add column debounce text;

-- At most one run per name that has not started.
create unique index holdfast_runs_debounced on {schema}runs (debounce)
    where debounce is not null and started_at is null and finished_at is null;
