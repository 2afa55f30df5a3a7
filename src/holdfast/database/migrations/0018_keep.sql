-- keep_failed: how long a run is kept after it failed or was cancelled; null if as long as a run that is done (`keep`).

alter table {schema}runs add column keep_failed bigint;

-- Find idempotency keys that have expired.
create index holdfast_keys_created on {schema}keys (created_at);
