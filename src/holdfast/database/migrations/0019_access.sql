-- Roles, scope and expiry of access tokens, and the logins of browsers.

-- roles: JSON list; null for tokens of older releases, whose roles follow from `may`. tasks, queues: JSON lists of names that may end with
-- a *; null for all. max_priority: the highest priority of runs that it enqueues; null for that of the task. used_at: roughly, its last use.
-- Older releases don't know these columns. They reject tokens that have them, because the stored hash has a prefix that theirs doesn't have.
alter table {schema}tokens add column roles text;
alter table {schema}tokens add column tasks text;
alter table {schema}tokens add column queues text;
alter table {schema}tokens add column max_priority int;
alter table {schema}tokens add column expires_at bigint;
alter table {schema}tokens add column used_at bigint;

-- One row per login of a browser, until it logs out or the login expires. id: the hash of the secret in its cookie. token: the token's id, or
-- "env." and a part of the hash of $HOLDFAST_TOKEN. seen_at: roughly, the last request of the user.
create table {schema}logins (
    id text primary key,
    token text not null,
    created_at bigint not null,
    seen_at bigint not null,
    expires_at bigint not null
);

create index holdfast_logins_token on {schema}logins (token, created_at);
create index holdfast_logins_expiry on {schema}logins (expires_at);

create view {schema}readable_logins as
select token, {time(created_at)} as created, {time(seen_at)} as seen, {time(expires_at)} as expires from {schema}logins;
