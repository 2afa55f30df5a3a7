-- Tokens by which programs and people come to the web side: only hashes, so that who reads the tables can't come in by them.

-- may: read, or operate, which includes reading. tenant: whose runs alone it is for; null for all.
-- Revoked ones stay, so that what history says about who did something can be looked up.
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
