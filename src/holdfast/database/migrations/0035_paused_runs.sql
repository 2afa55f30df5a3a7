-- List paused runs, whatever their state. Few runs are paused, so the index is small.
create index holdfast_runs_paused_all on {schema}runs (paused_at) where paused_at is not null;
