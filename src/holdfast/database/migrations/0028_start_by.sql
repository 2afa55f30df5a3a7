-- Runs that are cancelled unless they start in time, and idempotency keys that expire.

-- start_by: the time by which the first attempt has to start; null for most runs.
alter table {schema}runs add column start_by bigint;

create index holdfast_runs_start_by on {schema}runs (start_by)
    where start_by is not null and started_at is null and finished_at is null;

{check(runs, start_by, start_by between -400000000000000000 and 400000000000000000)};

-- expires_at: when the key may be used for another run; null for keys that expire with the app's `keep_keys`.
alter table {schema}keys add column expires_at bigint;

create index holdfast_keys_expiry on {schema}keys (expires_at) where expires_at is not null;
