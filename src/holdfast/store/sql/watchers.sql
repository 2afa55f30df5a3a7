-- name: keep_watcher
-- A client process wants to be told of ends for so long; said again before that is over, for as long once more.
insert into {schema}watchers (id, expires_at) values (:id, {clock} + cast(:lasts as bigint))
on conflict (id) do update set expires_at = excluded.expires_at

-- name: drop_watcher
-- A client process doesn't want to be told of ends any more.
delete from {schema}watchers where id = :id

-- name: prune_watchers
-- Client processes that died while they waited for ends.
delete from {schema}watchers where expires_at <= {now}
