-- name: add_audit
-- Record that an operator is about to act. If it is about a run, the entry concerns the tenant of the run. A repeat after a
-- lost response changes nothing.
insert into {schema}audit (id, at, actor, action, subject, via, client, detail, tenant)
values (cast(:id as text), {now}, cast(:actor as text), cast(:action as text), cast(:subject as text), cast(:via as text),
    cast(:client as text), cast(:detail as text),
    coalesce(cast(:tenant as text), (select r.tenant from {schema}runs r where r.id = cast(:run as {uuid}))))
on conflict (id) do nothing

-- name: finish_audit
-- Record what came of an action.
update {schema}audit set outcome = cast(:outcome as text), detail = cast(:detail as text)
where id = cast(:id as text) and outcome is null

-- name: bound_audit
-- Find the last of the entries that a page may read.
select min(each.id), count(*) from (
    select id from {schema}audit where id < cast(:before as text) order by id desc limit {limit}
) each

-- name: list_audit
-- List the entries between two ids that match, newest first.
select id, at, actor, action, subject, via, client, outcome, detail, tenant from {schema}audit
where id < cast(:before as text) and id >= cast(:last as text)
and (cast(:actor as text) is null or actor = cast(:actor as text))
and (cast(:action as text) is null or action = cast(:action as text))
and (cast(:subject as text) is null or subject = cast(:subject as text))
and (cast(:outcome as text) is null or outcome = cast(:outcome as text))
and (cast(:tenant as text) is null or tenant = cast(:tenant as text))
and (cast(:since as bigint) is null or at >= cast(:since as bigint))
and (cast(:until as bigint) is null or at < cast(:until as bigint))
order by id desc limit {limit}

-- name: prune_audit
-- Delete a batch of entries that are older than the retention.
delete from {schema}audit where id in (
    select id from {schema}audit where at <= {now} - cast(:age as bigint) order by at limit 500
)
returning id
