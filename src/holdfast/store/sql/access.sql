-- name: add_token
-- Insert a token. A repeat after a lost response changes nothing.
insert into {schema}tokens (id, hash, name, may, tenant, roles, tasks, queues, max_priority, created_at, expires_at)
values (cast(:id as text), cast(:hash as text), cast(:name as text), cast(:may as text), cast(:tenant as text), cast(:roles as text),
    cast(:tasks as text), cast(:queues as text), cast(:max_priority as int), {now}, {now} + cast(:expires_in as bigint))
on conflict (id) do nothing

-- name: list_tokens
-- List every token, the oldest first.
select id, hash, name, may, tenant, created_at, revoked_at, roles, tasks, queues, max_priority, expires_at, used_at
from {schema}tokens order by created_at, id

-- name: find_token
-- Find a valid token, and whether its last use was recorded more than a minute ago.
select id, hash, name, may, tenant, created_at, revoked_at, roles, tasks, queues, max_priority, expires_at, used_at,
    case when coalesce(used_at, 0) < {now} - 60000000 then 1 else 0 end
from {schema}tokens where id = cast(:id as text) and revoked_at is null and coalesce(expires_at > {now} and expires_at <= 400000000000000000, true)

-- name: has_token
-- Check whether there is a valid token.
select 1 from {schema}tokens where revoked_at is null and coalesce(expires_at > {now} and expires_at <= 400000000000000000, true) limit 1

-- name: has_token_row
-- Check whether a token was ever created.
select 1 from {schema}tokens limit 1

-- name: touch_token
-- Record that a token is in use.
update {schema}tokens set used_at = {now} where id = cast(:id as text) and coalesce(used_at, 0) < {now} - 60000000

-- name: revoke_token
-- Revoke a token; return it if this call did.
update {schema}tokens set revoked_at = {now} where id = cast(:id as text) and revoked_at is null returning id

-- name: add_login
-- Insert a login. A repeat after a lost response changes nothing.
insert into {schema}logins (id, token, created_at, seen_at, expires_at)
values (cast(:id as text), cast(:token as text), {now}, {now}, {now} + cast(:lifetime as bigint))
on conflict (id) do nothing

-- name: find_login
-- Find a valid login with its token, and whether its last request was recorded more than a minute ago.
--
-- A login of $HOLDFAST_TOKEN, or with an identity provider, has no row in tokens; its id starts with "env." or "oidc.",
-- which no token's id does.
select s.token, case when s.seen_at < {now} - 60000000 then 1 else 0 end,
    t.id, t.hash, t.name, t.may, t.tenant, t.created_at, t.revoked_at, t.roles, t.tasks, t.queues, t.max_priority, t.expires_at, t.used_at
from {schema}logins s left join {schema}tokens t on t.id = s.token
where s.id = cast(:id as text) and s.expires_at > {now} and s.seen_at > {now} - cast(:idle as bigint)
and (substr(s.token, 1, 4) = 'env.' or substr(s.token, 1, 5) = 'oidc.' or (t.id is not null and t.revoked_at is null and coalesce(t.expires_at > {now} and t.expires_at <= 400000000000000000, true)))

-- name: touch_login
-- Record that a login is in use.
update {schema}logins set seen_at = {now} where id = cast(:id as text) and seen_at < {now} - 60000000

-- name: pick_extra_logins
-- Pick the logins of a token beyond the newest {limit}, and expired logins of any token, a few at a time.
select id from (
    select id from {schema}logins where token = cast(:token as text) order by created_at desc, id limit 500 offset {limit}
) extra
union
select id from (select id from {schema}logins where expires_at < {now} order by expires_at limit 500) expired

-- name: delete_logins
-- Delete logins, so that their sessions end at once.
delete from {schema}logins where id {among(:rows, id text)} returning id

-- name: count_logins
-- Count the valid logins of each token.
select token, count(*) from {schema}logins where expires_at > {now} and seen_at > {now} - cast(:idle as bigint) group by token
