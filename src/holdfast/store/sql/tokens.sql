-- name: add_token
-- A new token. A repeat after a lost answer changes nothing.
insert into {schema}tokens (id, hash, name, may, tenant, created_at)
values (cast(:id as text), cast(:hash as text), cast(:name as text), cast(:may as text), cast(:tenant as text), {now})
on conflict (id) do nothing

-- name: list_tokens
-- Every token, the oldest first.
select id, hash, name, may, tenant, created_at, revoked_at from {schema}tokens order by created_at, id

-- name: find_token
-- A token that may be used.
select id, hash, name, may, tenant, created_at, revoked_at from {schema}tokens where id = cast(:id as text) and revoked_at is null

-- name: any_token
-- Whether there is a token that may be used.
select 1 from {schema}tokens where revoked_at is null limit 1

-- name: revoke_token
-- A token may not be used any more. Answers it, if it was this call.
update {schema}tokens set revoked_at = {now} where id = cast(:id as text) and revoked_at is null returning id
