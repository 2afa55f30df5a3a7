-- Access tokens of the dashboard and the API. Only hashes are stored, so that reading the table gives no access.

-- may: read, or operate, which includes reading. tenant: restricts the token to one tenant's runs; null for all.
-- Revoked tokens stay, so that history entries can still be attributed.
create table {schema}tokens (
    id text primary key,
    hash text not null,
    name text not null,
    may text not null check (may in ('read', 'operate')),
    tenant text,
    created_at bigint not null,
    revoked_at bigint
);

create view {schema}readable_tokens as
select id, name, may, tenant, {time(created_at)} as created, {time(revoked_at)} as revoked from {schema}tokens;
