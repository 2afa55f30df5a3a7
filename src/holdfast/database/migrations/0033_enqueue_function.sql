-- only: postgres
-- Enqueue from SQL, such as triggers and programs in other languages.

-- The rules of names in Python (model/names.py).
create function {schema}check_name(value text, what text, max_chars int default 200) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $function$
begin
    if value is null or value = '' then
        raise exception 'enqueue: % must not be empty', what using errcode = 'invalid_parameter_value';
    elsif length(value) > max_chars then
        raise exception 'enqueue: % may have at most % characters, not %', what, max_chars, length(value)
            using errcode = 'invalid_parameter_value';
    elsif value ~ '[\u0001-\u001f\u007f-\u009f]' then
        raise exception 'enqueue: % must not contain a control character', what using errcode = 'invalid_parameter_value';
    end if;
end
$function$;

-- The duration of an interval in microseconds, which must not be negative.
create function {schema}check_duration(value interval, what text) returns bigint
language plpgsql immutable set search_path = pg_catalog, pg_temp as $function$
begin
    if value < interval '0' or value > interval '200 years' then
        raise exception 'enqueue: % must be from 0 to 200 years', what using errcode = 'invalid_parameter_value';
    end if;
    return cast(extract(epoch from value) * 1000000.0 as bigint);
end
$function$;

-- Create a run as `app.remote(task, queue=…).options(…).enqueue(…)` does, in the transaction of the caller. Returns its id, or that of the run
-- which has its key or unique name.
create function {schema}enqueue(
    task text,
    args jsonb default '[]',
    queue text default 'default',
    priority int default 0,
    key text default null,
    key_ttl interval default null,
    unique_name text default null,
    tenant text default null,
    delay interval default null,
    run_at timestamptz default null,
    start_by interval default null,
    deadline interval default null,
    tags text[] default null,
    metadata jsonb default null,
    max_crashes int default 3,
    keep interval default interval '7 days',
    keep_failed interval default interval '30 days',
    ignore_limits boolean default false
) returns uuid
language plpgsql volatile set search_path = pg_catalog, pg_temp as $function$
#variable_conflict use_variable
declare
    stamp constant bigint := cast(extract(epoch from now()) * 1000000.0 as bigint);
    micros constant bigint := cast(extract(epoch from clock_timestamp()) * 1000000.0 as bigint);
    new_id constant uuid := cast(
        lpad(to_hex(micros / 1000), 12, '0') || '7' || lpad(to_hex((micros % 1000) * 4096 / 1000), 3, '0')
        || substr(replace(cast(gen_random_uuid() as text), '-', ''), 17) as uuid
    );
    owner constant text := '[' || coalesce(cast(to_json(tenant) as text), 'null') || ',' || cast(to_json(task) as text);
    stored_args text;
    name text;
    full_name text;
    lane bigint;
    limited int;
    digest text;
    holder uuid;
    held_digest text;
    due bigint;
    keep_micros bigint;
    keep_failed_micros bigint;
    tries int := 0;
begin
    perform {schema}check_name(task, 'task');
    perform {schema}check_name(queue, 'queue');
    if starts_with(queue, '$') then
        raise exception 'enqueue: queue must not start with $, which is reserved' using errcode = 'invalid_parameter_value';
    end if;
    if tenant is not null then
        perform {schema}check_name(tenant, 'tenant');
    end if;
    if priority is null or abs(cast(priority as bigint)) > 1000000 then
        raise exception 'enqueue: priority must be within ±1,000,000' using errcode = 'invalid_parameter_value';
    end if;
    if max_crashes is null or max_crashes not between 0 and 1000000 then
        raise exception 'enqueue: max_crashes must be from 0 to 1,000,000' using errcode = 'invalid_parameter_value';
    end if;
    if keep is null or keep_failed is null then
        raise exception 'enqueue: keep and keep_failed must not be null' using errcode = 'invalid_parameter_value';
    end if;
    keep_micros := {schema}check_duration(keep, 'keep');
    keep_failed_micros := {schema}check_duration(keep_failed, 'keep_failed');

    if jsonb_typeof(args) = 'array' then
        stored_args := case when args = '[]' then '{}' else '{"*":' || cast(args as text) || '}' end;
    elsif jsonb_typeof(args) = 'object' and not jsonb_exists(args, '*') then
        stored_args := cast(args as text);
    else
        raise exception 'enqueue: args must be a JSON array of positional arguments or a JSON object of named ones'
            using errcode = 'invalid_parameter_value';
    end if;
    if octet_length(stored_args) > 2097152 then
        raise exception 'enqueue: the arguments of task %: % bytes of JSON exceed the limit of 2,097,152', task, octet_length(stored_args)
            using errcode = 'program_limit_exceeded';
    end if;

    if delay is not null and run_at is not null then
        raise exception 'enqueue: delay and run_at are mutually exclusive' using errcode = 'invalid_parameter_value';
    end if;
    if run_at is not null and run_at not between timestamptz '0001-01-02 00:00:00+00' and timestamptz '9999-12-30 00:00:00+00' then
        raise exception 'enqueue: run_at is out of range' using errcode = 'invalid_parameter_value';
    end if;
    due := coalesce(
        cast(extract(epoch from run_at) * 1000000.0 as bigint), stamp + {schema}check_duration(delay, 'delay')
    );

    if cardinality(tags) > 100 then
        raise exception 'enqueue: tags may have at most 100 names, not %', cardinality(tags) using errcode = 'invalid_parameter_value';
    end if;
    foreach name in array coalesce(tags, array[]::text[]) loop
        perform {schema}check_name(name, 'a tag');
    end loop;

    if metadata is not null then
        if jsonb_typeof(metadata) <> 'object' then
            raise exception 'enqueue: metadata must be a JSON object' using errcode = 'invalid_parameter_value';
        end if;
        for name in select jsonb_object_keys(metadata) loop
            perform {schema}check_name(name, 'a name in metadata', 100);
            if jsonb_typeof(metadata -> name) in ('object', 'array') then
                raise exception 'enqueue: the value of % in metadata must be a string, a number, a boolean or null', name
                    using errcode = 'invalid_parameter_value';
            end if;
        end loop;
        if (select count(*) > 50 or sum(octet_length(cast(m.value as text))) > 8192 from jsonb_each(metadata) m) then
            raise exception 'enqueue: metadata may have at most 50 names and 8,192 bytes of values' using errcode = 'program_limit_exceeded';
        end if;
    end if;

    if key is null and key_ttl is not null then
        raise exception 'enqueue: key_ttl needs a key' using errcode = 'invalid_parameter_value';
    end if;
    if key is not null then
        perform {schema}check_name(key, 'key', 500);
        digest := 'sql1:' || encode(sha256(convert_to(cast(jsonb_build_array(task, args) as text), 'UTF8')), 'hex');
        loop
            insert into {schema}keys as k (scope, key, digest, run, created_at, expires_at)
            values (owner || ']', key, digest, new_id, stamp, stamp + {schema}check_duration(key_ttl, 'key_ttl'))
            on conflict on constraint keys_pkey do update
            set digest = excluded.digest, run = excluded.run, created_at = excluded.created_at, expires_at = excluded.expires_at
            where k.expires_at <= stamp;
            exit when found;
            select k.run, k.digest into holder, held_digest from {schema}keys k where k.scope = owner || ']' and k.key = key;
            if not found then
                tries := tries + 1;
                if tries > 10 then
                    raise exception 'enqueue: too much contention for key %: try again', key using errcode = 'serialization_failure';
                end if;
                continue;
            end if;
            if held_digest <> digest then
                raise exception 'enqueue: key % of task % was used for another request, by run %', key, task, holder
                    using errcode = 'unique_violation', hint = 'Use another key, or the same arguments. Calls from Python have keys of their own.';
            end if;
            return holder;
        end loop;
    end if;

    select l.id, l.limited into lane, limited from {schema}lanes l
    where l.queue = queue and l.task = task and l.unused_since is null;
    if not found then
        insert into {schema}lanes as l (queue, task) values (queue, task)
        on conflict on constraint lanes_queue_task_key do update set unused_since = null where l.unused_since is not null;
        select l.id, l.limited into strict lane, limited from {schema}lanes l where l.queue = queue and l.task = task;
    end if;
    if limited = 1 and not coalesce(ignore_limits, false) then
        raise exception 'enqueue: runs of task % in queue % have limits, which are taken from its code', task, queue
            using errcode = 'object_not_in_prerequisite_state',
                hint = 'Enqueue it from Python, or a task that enqueues it; ignore_limits => true creates a run without limits.';
    end if;

    if unique_name is not null then
        perform {schema}check_name(unique_name, 'unique_name', 500);
        full_name := owner || ',' || cast(to_json(unique_name) as text) || ']';
    end if;
    tries := 0;
    loop
        insert into {schema}runs as r (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, unique_name, debounce, held, args,
            options, tags, keep, keep_failed, created_at, limits, turn, start_by)
        values (
            new_id, lane, tenant, priority, case when due > stamp then 'scheduled' else 'ready' end, due,
            stamp + {schema}check_duration(deadline, 'deadline'), {schema}check_duration(deadline, 'deadline'), max_crashes, full_name, null, null,
            stored_args, case when key is not null then '{"key":' || cast(to_json(key) as text) || '}' end,
            cast(array_to_json(tags) as text), keep_micros, nullif(keep_failed_micros, keep_micros), stamp, null, stamp - 1000000000000000000,
            stamp + {schema}check_duration(start_by, 'start_by')
        )
        on conflict do nothing;
        exit when found;
        select r.id into holder from {schema}runs r where r.unique_name = full_name and r.finished_at is null;
        if found then
            if key is not null then
                update {schema}keys k set run = holder where k.scope = owner || ']' and k.key = key;
            end if;
            return holder;
        end if;
        tries := tries + 1;
        if tries > 10 then
            raise exception 'enqueue: too much contention for the name %: try again', unique_name using errcode = 'serialization_failure';
        end if;
    end loop;

    if full_name is not null then
        update {schema}runs r set held = 'quiescing'
        where r.id = new_id and (current_setting('transaction_isolation') <> 'read committed' or exists (
            select 1 from {schema}runs old where old.unique_name = full_name and old.finished_at is not null and old.session is not null
        ));
    end if;
    if metadata is not null then
        insert into {schema}metadata (run, name, value)
        select new_id, m.key, case jsonb_typeof(m.value) when 'number' then cast(trim_scale(cast(m.value as numeric)) as text) else cast(m.value as text) end
        from jsonb_each(metadata) m;
    end if;
    perform pg_notify(w.channel, '') from (
        select min(coalesce(x.wake_channel, '{channel}')) as channel from {schema}workers x
        where x.idle = 1 and x.lease_until > stamp and coalesce(x.wake_channel, '{channel}') <> ''
        and x.session <> coalesce(current_setting('holdfast.session', true), '')
        group by x.wake_group
    ) w;
    return new_id;
end
$function$;
