-- Find runs by idempotency key, whatever their tenant and task. The expression is worded as in no other statement, so that a planner
-- doesn't use this index where tenant and task are known: one key may be used by very many tenants.

create index holdfast_keys_key on {schema}keys ((key || ''));
