-- name: read_subscriptions
-- Read the subscriptions of an app, and all others with the same names, without a lock.
select name, app, topics, template, orphaned, orphaned_at, former, {now} from {schema}subscriptions
where app = :app or name {among(:rows, name text)}

-- name: lock_subscriptions
-- Lock the subscriptions of an app, and all others with the same names.
select name, app, topics, template, orphaned, orphaned_at, former, {now} from {schema}subscriptions
where app = :app or name {among(:rows, name text)}
order by name {lock}

-- name: add_subscriptions
-- Insert subscriptions; those that another process has just added stay as they are.
insert into {schema}subscriptions (name, app, topics, template, declared_at)
select each.name, each.app, each.topics, each.template, {now}
from {each(:rows, name text, app text, topics text, template text)}
where true
on conflict do nothing
returning name

-- name: update_subscriptions
-- Replace what tasks subscribe to.
update {schema}subscriptions set app = each.app, topics = each.topics, template = each.template, orphaned = 0, orphaned_at = null,
    former = each.former, declared_at = {now}
from {each(:rows, name text, app text, topics text, template text, former text)}
where {schema}subscriptions.name {among(:rows, name text)} and {schema}subscriptions.name = each.name

-- name: orphan_subscriptions
-- Mark subscriptions that no code declares any more. They end a while later.
update {schema}subscriptions set orphaned = 1, orphaned_at = {now} where name {among(:rows, name text)}

-- name: delete_subscriptions
-- Delete subscriptions that were orphaned long ago.
delete from {schema}subscriptions where name {among(:rows, name text)}

-- name: list_subscriptions
-- List all subscriptions, and whether each still receives messages.
select name, app, topics, template, orphaned, orphaned_at,
    case when orphaned = 0 or orphaned_at > {now} - cast(:absence as bigint) then 1 else 0 end, declared_at
from {schema}subscriptions order by name

-- name: find_listened_fields
-- Find which fields of a topic's messages functions compare: the few different lists, with one index lookup for each.
with recursive compared (fields) as (
    select min(l.fields) from {schema}listeners l where l.tenant = :tenant and l.topic = :topic
    union all
    select (
        select min(l.fields) from {schema}listeners l where l.tenant = :tenant and l.topic = :topic and l.fields > c.fields
    )
    from compared c where c.fields is not null
)
select fields from compared where fields is not null

-- name: find_listeners
-- Find the functions that wait for messages of a topic with these values, and the waits of those that wait right now.
select l.run, l.inbox from {each(:rows, fields text, wanted text)} join {schema}listeners l
on l.tenant = :tenant and l.topic = :topic and l.fields = each.fields and l.wanted = each.wanted

-- name: find_receivers
-- Find the open waits of locked runs for messages of these topics.
select w.run, w.target, w.generation, w.key
from {each(:rows, run uuid, topic text)} join {schema}waits w
on w.run = each.run and w.kind = 'message' and w.target = each.topic and w.outcome is null
order by w.since, length(w.key), w.key

-- name: add_published_messages
-- Append published messages to locked runs, taken already by those that wait for them.
insert into {schema}messages (run, n, topic, payload, sent_at, taken_by, published_at)
select cast(each.run as {uuid}), each.number + coalesce((select max(m.n) from {schema}messages m where m.run = each.run), 0),
    each.topic, each.payload, {now}, each.taken_by, {now}
from {each(:rows, run uuid, number int, topic text, payload text, taken_by text)}

-- name: add_listeners
-- Let functions receive messages of topics from now on.
insert into {schema}listeners (run, inbox, tenant, topic, fields, wanted, since)
select cast(each.run as {uuid}), each.inbox, each.tenant, each.topic, each.fields, each.wanted, {now}
from {each(:rows, run uuid, inbox text, tenant text, topic text, fields text, wanted text)}
where true
on conflict do nothing

-- name: delete_listeners
-- End the subscriptions of functions.
delete from {schema}listeners where run {among(:rows, id uuid)}

-- name: add_publications
-- Store published messages.
insert into {schema}publications (id, topic, tenant, payload, runs, functions, published_at)
select cast(each.id as {uuid}), each.topic, each.tenant, each.payload, each.runs, each.functions, {now}
from {each(:rows, id uuid, topic text, tenant text, payload text, runs int, functions int)}
where true

-- name: find_publication
-- Read how many runs and functions a message reached.
select runs, functions from {schema}publications where id = cast(:id as {uuid})

-- name: list_publications
-- List the last messages, of one topic and tenant or of all, without their payloads.
select id, topic, tenant, runs, functions, published_at, octet_length(payload) from {schema}publications
where (cast(:topic as text) is null or topic = :topic) and (cast(:tenant as text) is null or tenant = :tenant)
order by published_at desc, id desc limit cast(:size as bigint)

-- name: read_publications
-- Read the payloads of messages.
select id, payload from {schema}publications where id {among(:rows, id uuid)}

-- name: count_publications
-- Count the last messages by topic. The last column says how many were read.
with recent as materialized (
    select topic, runs, functions, published_at, tenant from {schema}publications
    where (cast(:tenant as text) is null or tenant = :tenant) order by published_at desc limit 10000
)
select topic, count(*), sum(runs), sum(functions), max(published_at), (select count(*) from recent) from recent
group by topic order by topic

-- name: list_listeners
-- List functions that wait for messages of topics, those that have waited longest first.
--
-- SQLite keeps the order of a cross join: no statistics make it begin with the runs.
select l.run, a.task, l.inbox, l.tenant, l.since from {schema}listeners l
cross join {schema}runs r join {schema}lanes a on a.id = r.lane
where r.id = l.run and (cast(:tenant as text) is null or l.tenant = :tenant) and (cast(:topic as text) is null or l.topic = :topic)
and r.finished_at is null and r.ending is null
order by l.since, l.run limit cast(:size as bigint)

-- name: prune_publications
-- Delete old messages, in small batches.
with old as materialized (
    select p.id from {schema}publications p where p.published_at <= {now} - cast(:age as bigint)
    order by p.published_at limit 500 {lock_skip_locked}
)
delete from {schema}publications where id {among(old, id)}
returning id

-- name: prune_undelivered
-- Delete old messages of topics that functions haven't received, in small batches.
with old as materialized (
    select m.run, m.n from {schema}messages m
    where m.published_at is not null and m.taken_by is null and m.published_at <= {now} - cast(:age as bigint)
    order by m.published_at limit 500 {lock_skip_locked}
)
delete from {schema}messages where (run, n) in (select old.run, old.n from old)
returning run
