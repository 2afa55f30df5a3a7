-- name: fork_run
-- A new run like another one, with other arguments where they are given. It has been claimed before, as it were: it has a past.
insert into {schema}runs (id, lane, tenant, priority, state, deadline, lifetime, max_crashes, fence, args, options, tags, keep, records, created_at, limits, turn)
select cast(:fork as {uuid}), r.lane, r.tenant, r.priority, 'ready', {now} + r.lifetime, r.lifetime, r.max_crashes, 1,
    coalesce(cast(:args as text), r.args), r.options, r.tags, r.keep, 1, {now}, r.limits, {next_turn(r, {now})}
from {schema}runs r where r.id = cast(:id as {uuid})
on conflict do nothing
returning id, {notify_workers}

-- name: add_past
-- What a fork takes over of what its original recorded.
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select cast(each.run as {uuid}), 0, each.n, each.key, each.kind, each.value, 0, 0, each.took, each.at
from {each(:rows, run uuid, n int, key text, kind text, value text, took bigint, at bigint)}
where true
on conflict do nothing
