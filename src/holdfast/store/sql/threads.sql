-- name: put_thread_checkpoint
-- Store a checkpoint of a thread. Storing it again replaces it.
insert into {schema}langgraph_checkpoints (thread, tenant, ns, id, parent, run, data, metadata, at)
select each.thread, each.tenant, each.ns, each.id, each.parent, each.run, each.data, each.metadata, {stamp}
from {each(:rows, thread text, tenant text, ns text, id text, parent text, run text, data text, metadata text)}
where true
on conflict (thread, tenant, ns, id) do update
set parent = excluded.parent, run = excluded.run, data = excluded.data, metadata = excluded.metadata

-- name: put_thread_values
-- Store values of channels of a thread.
insert into {schema}langgraph_values (thread, tenant, ns, channel, version, data)
select each.thread, each.tenant, each.ns, each.channel, each.version, each.data
from {each(:rows, thread text, tenant text, ns text, channel text, version text, data text)}
where true
on conflict (thread, tenant, ns, channel, version) do update set data = excluded.data

-- name: put_thread_writes
-- Store what a task has written. The first writes to ordinary channels count, and the last ones to special channels.
insert into {schema}langgraph_writes (thread, tenant, ns, id, task, n, channel, path, data)
select each.thread, each.tenant, each.ns, each.id, each.task, each.n, each.channel, each.path, each.data
from {each(:rows, thread text, tenant text, ns text, id text, task text, n int, channel text, path text, data text)}
where true
on conflict (thread, tenant, ns, id, task, n) do update
set channel = excluded.channel, path = excluded.path, data = excluded.data where excluded.n < 0

-- name: read_thread_checkpoint
-- Read a checkpoint of a thread.
select id, parent, data, metadata from {schema}langgraph_checkpoints
where thread = :thread and tenant = :tenant and ns = :ns and id = :id

-- name: read_last_thread_checkpoint
-- Read the last checkpoint of a thread.
select id, parent, data, metadata from {schema}langgraph_checkpoints
where thread = :thread and tenant = :tenant and ns = :ns
order by id desc limit 1

-- name: read_thread_values
-- Read values of channels of a thread.
select v.channel, v.version, v.data from {each(:rows, channel text, version text)}
{lookup(langgraph_values v, v.thread = :thread and v.tenant = :tenant and v.ns = :ns and v.channel = each.channel and v.version = each.version)}

-- name: read_thread_writes
-- Read what tasks have written after a checkpoint of a thread.
select task, n, channel, path, data from {schema}langgraph_writes
where thread = :thread and tenant = :tenant and ns = :ns and id = :id

-- name: list_thread_checkpoints
-- List a page of the checkpoints of a thread behind one, the newest first.
select thread, ns, id, parent, data, metadata from {schema}langgraph_checkpoints
where thread = :thread and tenant = :tenant and (cast(:ns as text) is null or ns = :ns)
and id <= :before and (id < :before or (ns < :after_ns))
order by id desc, ns desc limit {limit}

-- name: list_tenant_checkpoints
-- List a page of the checkpoints of all threads of a tenant behind one, the newest first.
select thread, ns, id, parent, data, metadata from {schema}langgraph_checkpoints
where tenant = :tenant
and id <= :before and (id < :before or thread < :after_thread or (thread = :after_thread and ns < :after_ns))
order by id desc, thread desc, ns desc limit {limit}

-- name: delete_checkpoints_of_runs
-- Delete the checkpoints that runs have created.
delete from {schema}langgraph_checkpoints where run {among(:rows, run text)} and tenant = :tenant
returning thread, ns, id

-- name: delete_thread_checkpoints
-- Delete checkpoints of a thread.
delete from {schema}langgraph_checkpoints
where thread = :thread and tenant = :tenant and ns = :ns and id {among(:rows, id text)}

-- name: delete_thread_writes
-- Delete what tasks have written after checkpoints of a thread.
delete from {schema}langgraph_writes
where thread = :thread and tenant = :tenant and ns = :ns and id {among(:rows, id text)}

-- name: list_thread_versions
-- List the versions of the values of a thread.
select ns, channel, version from {schema}langgraph_values where thread = :thread and tenant = :tenant

-- name: delete_thread_values
-- Delete values of a thread.
delete from {schema}langgraph_values
where thread = :thread and tenant = :tenant and ns = :ns and channel = :channel and version {among(:rows, version text)}

-- name: clear_thread_checkpoints
-- Delete all checkpoints of threads.
delete from {schema}langgraph_checkpoints where thread {among(:rows, thread text)} and tenant = :tenant

-- name: clear_thread_values
-- Delete all values of threads.
delete from {schema}langgraph_values where thread {among(:rows, thread text)} and tenant = :tenant

-- name: clear_thread_writes
-- Delete all writes of threads.
delete from {schema}langgraph_writes where thread {among(:rows, thread text)} and tenant = :tenant

-- name: list_all_thread_values
-- List all values of a thread.
select ns, channel, version, data from {schema}langgraph_values where thread = :thread and tenant = :tenant

-- name: list_all_thread_writes
-- List all writes of a thread.
select ns, id, task, n, channel, path, data from {schema}langgraph_writes where thread = :thread and tenant = :tenant

-- name: list_whole_thread
-- List all checkpoints of a thread.
select ns, id, parent, run, data, metadata from {schema}langgraph_checkpoints where thread = :thread and tenant = :tenant

-- name: delete_own_thread_checkpoints
-- Delete the threads of pruned runs, which are named like them.
delete from {schema}langgraph_checkpoints where thread {among(:rows, id text)}

-- name: delete_own_thread_values
-- Delete the values of these threads.
delete from {schema}langgraph_values where thread {among(:rows, id text)}

-- name: delete_own_thread_writes
-- Delete the writes of these threads.
delete from {schema}langgraph_writes where thread {among(:rows, id text)}
