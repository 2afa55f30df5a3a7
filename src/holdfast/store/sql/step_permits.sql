-- name: find_step_permits
-- Find the permits that these steps hold.
select p.run, p.key, p.fence, p.limits, p.taken_at
from {each(:rows, run uuid, key text)}
{lookup(step_permits p, p.run = each.run and p.key = each.key)}

-- name: add_step_permits
-- Record the permits that steps have taken.
insert into {schema}step_permits (run, key, fence, limits, taken_at)
select cast(each.run as {uuid}), each.key, each.fence, each.limits, each.taken_at
from {each(:rows, run uuid, key text, fence bigint, limits text, taken_at bigint)}
where true

-- name: delete_step_permits
-- Delete the permits that steps return.
delete from {schema}step_permits where {among_keys(step_permits, :rows, run uuid, key text)}

-- name: drop_step_permits
-- Delete the permits of all steps of runs that their session releases. The rows have the limits, to return the permits.
delete from {schema}step_permits where run {among(:rows, id uuid)}
returning limits

-- name: find_step_waits
-- Find since when these steps wait for a permit.
select w.run, w.key, w.since
from {each(:rows, run uuid, generation int, key text)}
{lookup(waits w, w.run = each.run and w.generation = each.generation and w.key = each.key)}

-- name: add_step_waits
-- Let steps wait for a counter. One that has waited before keeps its place and waits again.
insert into {schema}waits (run, generation, key, kind, target, eager, pending, since)
select cast(each.run as {uuid}), each.generation, each.key, 'event', each.target, 2, each.cost, each.since
from {each(:rows, run uuid, generation int, key text, target text, cost int, since bigint)}
where true
on conflict (run, generation, key) do update set target = excluded.target, pending = excluded.pending, outcome = null, value = null, settled_at = null

-- name: read_claim_times
-- Read when runs were claimed.
select id, claimed_at from {schema}runs where id {among(:rows, id uuid)}
