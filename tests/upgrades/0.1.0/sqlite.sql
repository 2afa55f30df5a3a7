CREATE TABLE holdfast_meta (
    name text primary key,
    value text not null
);
CREATE TABLE holdfast_lanes (
    id integer primary key autoincrement,
    queue text not null,
    task text not null, limited smallint not null default 0,
    unique (queue, task)
);
CREATE TABLE holdfast_workers (
    session text primary key,
    name text not null,
    lease_until bigint not null,
    started_at bigint not null,
    idle smallint not null default 0,
    info text not null
);
CREATE TABLE holdfast_runs (
    seq integer primary key autoincrement, id text not null unique,
    lane bigint not null,
    tenant text,
    priority int not null,
    turn bigint not null default 0,
    state text not null check (state in
        ('blocked', 'scheduled', 'ready', 'running', 'waiting', 'undoing', 'done', 'failed', 'cancelled', 'skipped')),
    held text,
    due_at bigint,
    deadline bigint,
    lifetime bigint,
    session text,
    fence bigint not null default 0,
    attempt int not null default 0,
    failures int not null default 0,
    crashes int not null default 0,
    max_crashes int not null,
    unique_name text,
    args text not null,
    result text,
    error text,
    options text,
    tags text,
    keep bigint not null,
    records int not null default 0,
    created_at bigint not null,
    claimed_at bigint,
    started_at bigint,
    finished_at bigint,
    expires_at bigint, root text, parent text, spawn_key text, place int, generation int not null default 0, resumed smallint not null default 0, spent bigint not null default 0, undos smallint not null default 0, ending text check (ending in ('failed', 'cancelled')), cause text, progress text, kind text check (kind in ('graph', 'gate')), node text, pending int, plan text, limits text, parked_on text,
    check ((state in ('done', 'failed', 'cancelled', 'skipped')) = (finished_at is not null)),
    check (state <> 'running' or session is not null),
    check (state <> 'scheduled' or due_at is not null)
);
CREATE TABLE holdfast_keys (
    scope text not null,
    key text not null,
    digest text not null,
    run text not null,
    created_at bigint not null,
    primary key (scope, key)
) without rowid;
CREATE TABLE holdfast_history (
    run text not null,
    n int not null,
    at bigint not null,
    kind text not null,
    attempt int not null,
    fence bigint,
    session text,
    since bigint,
    data text,
    primary key (run, n)
) without rowid;
CREATE TABLE holdfast_queues (
    name text primary key,
    paused smallint not null default 0,
    paused_at bigint,
    check ((paused = 1) = (paused_at is not null))
);
CREATE TABLE holdfast_checkpoints (
    run text not null,
    generation int not null,
    n int not null,
    key text not null,
    kind text not null,
    value text,
    fence bigint not null,
    undo smallint not null default 0,
    took bigint,
    at bigint not null,
    primary key (run, generation, n)
) without rowid;
CREATE TABLE holdfast_waits (
    run text not null,
    generation int not null,
    key text not null,
    kind text not null check (kind in ('sleep', 'event', 'message', 'children')),
    target text,
    eager smallint not null default 0,
    pending int,
    due_at bigint,
    since bigint not null,
    outcome text check (outcome in ('due', 'event', 'message', 'children', 'failed')),
    value text,
    settled_at bigint,
    primary key (run, generation, key),
    check ((outcome is null) = (settled_at is null))
) without rowid;
CREATE TABLE holdfast_events (
    target text primary key,
    tenant text,
    name text not null,
    payload text,
    touched_at bigint not null,
    emitted_at bigint,
    emitted_by text,
    more smallint not null default 0,
    check (emitted_at is null or payload is not null)
);
CREATE TABLE holdfast_messages (
    run text not null,
    n int not null,
    topic text not null,
    payload text not null,
    sent_at bigint not null,
    sent_by text,
    taken_by text,
    primary key (run, n)
) without rowid;
CREATE TABLE holdfast_chunks (
    run text not null,
    n int not null,
    attempt int not null,
    data text not null,
    at bigint not null,
    primary key (run, n)
) without rowid;
CREATE TABLE holdfast_edges (
    needs text not null,
    node text not null,
    primary key (needs, node)
) without rowid;
CREATE TABLE holdfast_limit_settings (
    name text primary key,
    concurrency int,
    rate int,
    period bigint,
    declared_at bigint not null
);
CREATE TABLE holdfast_limits (
    place text primary key,
    name text not null,
    used int not null default 0,
    log text not null default '[]',
    look_at bigint,
    touched_at bigint not null,
    check (used >= 0)
);
CREATE TABLE holdfast_schedules (
    name text primary key,
    kind text not null check (kind in ('schedule', 'trigger')),
    app text not null,
    queue text,
    task text,
    timing text not null,
    rules text not null,
    template text,
    next_at bigint,
    paused smallint not null default 0,
    orphaned smallint not null default 0,
    passed_at bigint,
    declared_at bigint not null,
    poller text,
    poll_until bigint,
    polls bigint not null default 0,
    check ((kind = 'schedule') = (template is not null)),
    check ((poller is null) = (poll_until is null))
);
CREATE TABLE holdfast_slots (
    id integer primary key autoincrement,
    schedule text not null,
    slot bigint not null,
    asked smallint not null default 0,
    run text not null
);
CREATE TABLE holdfast_polls (
    id integer primary key autoincrement,
    trigger_name text not null,
    at bigint not null,
    took bigint not null,
    found int not null,
    made int not null,
    error text
);
CREATE TABLE holdfast_tallies (
    span bigint not null,
    at bigint not null,
    lane bigint not null,
    state text not null,
    runs bigint not null,
    waits text not null,
    takes text not null,
    primary key (span, at, lane, state)
) without rowid;
CREATE TABLE holdfast_tokens (
    id text primary key,
    hash text not null,
    name text not null,
    may text not null check (may in ('read', 'operate')),
    tenant text,
    created_at bigint not null,
    revoked_at bigint
);
insert into "holdfast_meta" values ('schema', '9');
insert into "holdfast_meta" values ('oldest_code', '4');
insert into "holdfast_meta" values ('identity', '9b8bf7a5744f48b6f6adfab73ad046f6');
insert into "holdfast_lanes" values (1, 'default', 'function', 0);
insert into "holdfast_lanes" values (2, 'default', 'plain', 0);
insert into "holdfast_lanes" values (3, 'default', 'held', 0);
insert into "holdfast_lanes" values (4, 'default', 'undoing', 0);
insert into "holdfast_lanes" values (5, 'default', 'job', 0);
insert into "holdfast_lanes" values (6, 'default', 'machine', 0);
insert into "holdfast_lanes" values (7, '$graph', 'gate', 0);
insert into "holdfast_lanes" values (8, '$graph', 'graph', 0);
insert into "holdfast_workers" values ('host:10361:00d68210167f', 'host:10361', 1794821548851000, 1794821546836000, 1, '{"queues": null, "concurrency": 30, "tasks": ["function", "held", "job", "machine", "plain", "undoing", "who"]}');
insert into "holdfast_runs" values (1, '01a1e3b3-5caa-76bc-bb36-9039a48a71ed', 1, NULL, 0, 0, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"event","waits_for":"event"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794821545238000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 159000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (2, '01a1e3b3-5d1e-745a-8772-c39911ea4da4', 1, NULL, 0, 0, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"message","waits_for":"message"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794821545246000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 159000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (3, '01a1e3b3-5d2e-74b6-b49f-d6bd06feacdc', 1, NULL, 0, 0, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"child","waits_for":"child"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794821545262000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 184000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (4, '01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', 1, NULL, 0, 0, 'running', NULL, NULL, NULL, NULL, 'host:10361:00d68210167f', 1, 1, 0, 0, 100, NULL, '{"mark":"map","waits_for":"map"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821545266000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (5, '01a1e3b3-5d37-7d8e-9ecf-3aa4497372ef', 1, NULL, 0, 0, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"time","waits_for":"time"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794821545271000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 134000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (6, '01a1e3b3-5d45-7e96-a7ea-535e5a574745', 1, NULL, 0, 0, 'running', NULL, NULL, NULL, NULL, 'host:10361:00d68210167f', 1, 1, 0, 0, 100, NULL, '{"mark":"step","waits_for":"step"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821545286000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (7, '01a1e3b3-5d52-7443-bd80-89eb4f25dae7', 2, NULL, 0, 0, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"plain"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794821545302000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 156000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (8, '01a1e3b3-5d62-7528-92cf-91d765df570d', 3, NULL, 0, 0, 'running', NULL, NULL, NULL, NULL, 'host:10361:00d68210167f', 1, 1, 0, 0, 100, NULL, '{"mark":"held"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821545318000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (9, '01a1e3b3-5d6e-7440-80f2-9c9b1901e2a2', 4, NULL, 0, 0, 'running', NULL, NULL, NULL, NULL, 'host:10361:00d68210167f', 2, 2, 0, 0, 100, NULL, '{"mark":"undoing"}', NULL, '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}', NULL, NULL, 2592000000000, 1, 1794821545330000, 1794821547084000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 1, 'failed', '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (10, '01a1e3b3-5d77-7ebc-a448-3d1f92d67c59', 5, NULL, 0, 0, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"done"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794821545346000, 1794821546939000, 1794821546939000, 1794821547006000, 1797413547006000, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (11, '01a1e3b3-5d8a-7fe0-8edc-40162b5921eb', 6, NULL, 0, 0, 'scheduled', NULL, 1794821567067000, NULL, NULL, NULL, 1, 0, 0, 0, 100, NULL, '{"state":"Finish","fields":{"mark":"machine","more":1}}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794821545366000, 1794821546939000, 1794821546939000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (12, '01a1e3b3-5da7-767b-99c3-4d3515567e12', 8, NULL, 0, 0, 'waiting', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 3, NULL, '{}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821545391000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, 'graph', NULL, 3, NULL, NULL, NULL);
insert into "holdfast_runs" values (13, '01a1e3b3-5da7-7cdb-bf0a-c8fb311670e7', 5, NULL, 0, 0, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"graph-a"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794821545391000, 1794821546939000, 1794821546939000, 1794821547019000, NULL, '01a1e3b3-5da7-767b-99c3-4d3515567e12', '01a1e3b3-5da7-767b-99c3-4d3515567e12', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'a', NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (14, '01a1e3b3-5da7-7d7d-b49a-de569ff274da', 7, NULL, 0, 0, 'waiting', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 3, NULL, '{}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821545391000, NULL, NULL, NULL, NULL, '01a1e3b3-5da7-767b-99c3-4d3515567e12', '01a1e3b3-5da7-767b-99c3-4d3515567e12', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, 'gate', 'ok', NULL, '{"on_timeout":"fail","schema":{"type":"string"}}', NULL, NULL);
insert into "holdfast_runs" values (15, '01a1e3b3-5da7-7df5-83bb-3905a72edbdc', 5, NULL, 0, 0, 'blocked', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"graph-b"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821545391000, NULL, NULL, NULL, NULL, '01a1e3b3-5da7-767b-99c3-4d3515567e12', '01a1e3b3-5da7-767b-99c3-4d3515567e12', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'b', 1, '{"rule":["all",[["done","ok"],["==",{"node":"ok","path":[]},{"value":"yes"}]]]}', NULL, NULL);
insert into "holdfast_runs" values (16, '01a1e3b3-5da7-7e38-9a6c-7c8c2b3a8d99', 5, NULL, 0, 0, 'blocked', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"graph-c"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821545391000, NULL, NULL, NULL, NULL, '01a1e3b3-5da7-767b-99c3-4d3515567e12', '01a1e3b3-5da7-767b-99c3-4d3515567e12', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'c', 1, '{"rule":["all",[["done","ok"],["==",{"node":"ok","path":[]},{"value":"no"}]]]}', NULL, NULL);
insert into "holdfast_runs" values (17, '01a1e3b3-63fc-796d-8b8f-2bcb5b452bd8', 1, NULL, 0, 0, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"child-child","waits_for":"event"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794821547040000, 1794821547054000, 1794821547054000, NULL, NULL, '01a1e3b3-5d2e-74b6-b49f-d6bd06feacdc', '01a1e3b3-5d2e-74b6-b49f-d6bd06feacdc', '0:$spawn:function-1:906c7ccf94415b00#1', NULL, 0, 1, 77000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (18, '01a1e3b3-63fc-7c52-a877-2ddac88bd130', 5, NULL, 0, 0, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"map-1"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794821547040000, 1794821547054000, 1794821547054000, 1794821547073000, NULL, '01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', '01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', '0:$map:job-1:f45024f71b6bc840#1', 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (19, '01a1e3b3-63fc-7c98-892a-66ba0b26883b', 5, NULL, 0, 0, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"map-2"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794821547040000, 1794821547054000, 1794821547054000, 1794821547073000, NULL, '01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', '01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', '0:$map:job-1:f45024f71b6bc840#1', 1, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (20, '01a1e3b3-6485-7770-a181-ef052c727bac', 5, NULL, 0, 0, 'ready', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"ready"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821547142000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_runs" values (21, '01a1e3b3-6492-7631-a6a7-bf968e9e6810', 5, NULL, 0, 0, 'scheduled', NULL, 1794821567154000, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"scheduled"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794821547154000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
insert into "holdfast_keys" values ('[null,"graph","graph"]', 'graph', '1:d29655b9843f708434ac59456bca4ffd48295a376a11d559b0d00cf61c5abb0b', '01a1e3b3-5da7-767b-99c3-4d3515567e12', 1794821545390000);
insert into "holdfast_keys" values ('[null,"job"]', 'ready', '1:8bdc22dc6db46cd6cad4885b663bc0819f44a36dfa74cc554a15aef78bcab360', '01a1e3b3-6485-7770-a181-ef052c727bac', 1794821547141000);
insert into "holdfast_history" values ('01a1e3b3-5caa-76bc-bb36-9039a48a71ed', 1, 1794821547098000, 'waiting', 1, 1, 'host:10361:00d68210167f', 1794821546939000, '{"waits_for":["$event:go event#1"]}');
insert into "holdfast_history" values ('01a1e3b3-5d1e-745a-8772-c39911ea4da4', 1, 1794821547098000, 'waiting', 1, 1, 'host:10361:00d68210167f', 1794821546939000, '{"waits_for":["$message:note#1"]}');
insert into "holdfast_history" values ('01a1e3b3-5d2e-74b6-b49f-d6bd06feacdc', 1, 1794821547123000, 'waiting', 1, 1, 'host:10361:00d68210167f', 1794821546939000, '{"waits_for":["$join:$spawn:function-1:906c7ccf94415b00#1#1"]}');
insert into "holdfast_history" values ('01a1e3b3-5d37-7d8e-9ecf-3aa4497372ef', 1, 1794821547074000, 'waiting', 1, 1, 'host:10361:00d68210167f', 1794821546939000, '{"waits_for":["$sleep#1"]}');
insert into "holdfast_history" values ('01a1e3b3-5d52-7443-bd80-89eb4f25dae7', 1, 1794821547095000, 'waiting', 1, 1, 'host:10361:00d68210167f', 1794821546939000, '{"waits_for":["$message:note#1"]}');
insert into "holdfast_history" values ('01a1e3b3-5d6e-7440-80f2-9c9b1901e2a2', 1, 1794821547081000, 'undoing', 1, 1, 'host:10361:00d68210167f', 1794821546939000, '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}');
insert into "holdfast_history" values ('01a1e3b3-5d77-7ebc-a448-3d1f92d67c59', 1, 1794821547007000, 'done', 1, 1, 'host:10361:00d68210167f', 1794821546939000, NULL);
insert into "holdfast_history" values ('01a1e3b3-5d8a-7fe0-8edc-40162b5921eb', 1, 1794821547067000, 'moved', 1, 1, 'host:10361:00d68210167f', 1794821546939000, '{"from":"Begin","to":"Finish","after":20.0}');
insert into "holdfast_history" values ('01a1e3b3-5da7-7cdb-bf0a-c8fb311670e7', 1, 1794821547019000, 'done', 1, 1, 'host:10361:00d68210167f', 1794821546939000, NULL);
insert into "holdfast_history" values ('01a1e3b3-63fc-796d-8b8f-2bcb5b452bd8', 1, 1794821547131000, 'waiting', 1, 1, 'host:10361:00d68210167f', 1794821547054000, '{"waits_for":["$event:go child-child#1"]}');
insert into "holdfast_history" values ('01a1e3b3-63fc-7c52-a877-2ddac88bd130', 1, 1794821547074000, 'done', 1, 1, 'host:10361:00d68210167f', 1794821547054000, NULL);
insert into "holdfast_history" values ('01a1e3b3-63fc-7c98-892a-66ba0b26883b', 1, 1794821547074000, 'done', 1, 1, 'host:10361:00d68210167f', 1794821547054000, NULL);
insert into "holdfast_checkpoints" values ('01a1e3b3-5caa-76bc-bb36-9039a48a71ed', 0, 1, 'effect-1:16b46a7a38e1bc8d#1', 'step', '"before"', 1, 0, 14530, 1794821547003000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d1e-745a-8772-c39911ea4da4', 0, 1, 'effect-1:174cbad1524b5543#1', 'step', '"before"', 1, 0, 13789, 1794821547003000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d2e-74b6-b49f-d6bd06feacdc', 0, 1, 'effect-1:03b937c31a593923#1', 'step', '"before"', 1, 0, 12012, 1794821547003000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d2e-74b6-b49f-d6bd06feacdc', 0, 2, '$spawn:function-1:906c7ccf94415b00#1', 'spawn', '"01a1e3b3-63fc-796d-8b8f-2bcb5b452bd8"', 1, 0, NULL, 1794821547040000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', 0, 1, 'effect-1:d9f4cc15b3d37235#1', 'step', '"before"', 1, 0, 11660, 1794821547003000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', 0, 2, '$map:job-1:f45024f71b6bc840#1', 'map', '{"children":2}', 1, 0, NULL, 1794821547040000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', 0, 4, '$join:$map:job-1:f45024f71b6bc840#1#1', 'join', NULL, 1, 0, NULL, 1794821547083000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d37-7d8e-9ecf-3aa4497372ef', 0, 1, 'effect-1:2e3baea6d789a643#1', 'step', '"before"', 1, 0, 5746, 1794821547003000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d45-7e96-a7ea-535e5a574745', 0, 1, 'effect-1:3d61168ca78cedeb#1', 'step', '"before"', 1, 0, 2484, 1794821547003000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d52-7443-bd80-89eb4f25dae7', 0, 1, 'effect-1:de34097db0766f26#1', 'step', '"before"', 1, 0, 2929, 1794821546971000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d6e-7440-80f2-9c9b1901e2a2', 0, 1, 'one-1:c9fdc2a11b01a81f#1', 'step', '"one"', 1, 1, 746, 1794821547045000);
insert into "holdfast_checkpoints" values ('01a1e3b3-5d6e-7440-80f2-9c9b1901e2a2', 0, 2, 'two-1:191acd118cd41818#1', 'step', '"two"', 1, 1, 237, 1794821547072000);
insert into "holdfast_checkpoints" values ('01a1e3b3-63fc-796d-8b8f-2bcb5b452bd8', 0, 1, 'effect-1:1b7eb8b4895b831c#1', 'step', '"before"', 1, 0, 313, 1794821547072000);
insert into "holdfast_waits" values ('01a1e3b3-5caa-76bc-bb36-9039a48a71ed', 0, '$event:go event#1', 'event', '[null,"go event"]', 0, NULL, NULL, 1794821547040000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1e3b3-5d1e-745a-8772-c39911ea4da4', 0, '$message:note#1', 'message', 'note', 0, NULL, NULL, 1794821547040000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1e3b3-5d2e-74b6-b49f-d6bd06feacdc', 0, '$join:$spawn:function-1:906c7ccf94415b00#1#1', 'children', '0:$spawn:function-1:906c7ccf94415b00#1', 0, 1, NULL, 1794821547071000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1e3b3-5d32-73be-9f1f-cd6485a8de4d', 0, '$sleep#1', 'sleep', NULL, 0, NULL, 1794821567082000, 1794821547082000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1e3b3-5d37-7d8e-9ecf-3aa4497372ef', 0, '$sleep#1', 'sleep', NULL, 0, NULL, 1794821567040000, 1794821547040000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1e3b3-5d52-7443-bd80-89eb4f25dae7', 0, '$message:note#1', 'message', 'note', 0, NULL, NULL, 1794821547040000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1e3b3-63fc-796d-8b8f-2bcb5b452bd8', 0, '$event:go child-child#1', 'event', '[null,"go child-child"]', 0, NULL, NULL, 1794821547076000, NULL, NULL, NULL);
insert into "holdfast_events" values ('[null,"go event"]', NULL, 'go event', NULL, 1794821547039000, NULL, NULL, 0);
insert into "holdfast_events" values ('[null,"go child-child"]', NULL, 'go child-child', NULL, 1794821547076000, NULL, NULL, 0);
insert into "holdfast_edges" values ('01a1e3b3-5da7-7cdb-bf0a-c8fb311670e7', '01a1e3b3-5da7-7d7d-b49a-de569ff274da');
insert into "holdfast_edges" values ('01a1e3b3-5da7-7d7d-b49a-de569ff274da', '01a1e3b3-5da7-7df5-83bb-3905a72edbdc');
insert into "holdfast_edges" values ('01a1e3b3-5da7-7d7d-b49a-de569ff274da', '01a1e3b3-5da7-7e38-9a6c-7c8c2b3a8d99');
insert into "holdfast_tallies" values (60000000, 1794818100000000, 0, 'done', 0, '[]', '[]');
delete from sqlite_sequence;
insert into "sqlite_sequence" values ('holdfast_lanes', 8);
insert into "sqlite_sequence" values ('holdfast_runs', 21);
CREATE INDEX holdfast_runs_ready on holdfast_runs (lane, priority desc, turn, seq) where state = 'ready' and held is null;
CREATE INDEX holdfast_runs_due on holdfast_runs (due_at) where state = 'scheduled';
CREATE INDEX holdfast_runs_owned on holdfast_runs (session) where session is not null;
CREATE INDEX holdfast_runs_deadline on holdfast_runs (deadline) where deadline is not null and finished_at is null;
CREATE INDEX holdfast_runs_held on holdfast_runs (held) where held is not null;
CREATE INDEX holdfast_runs_expiry on holdfast_runs (expires_at) where expires_at is not null;
CREATE UNIQUE INDEX holdfast_runs_unique on holdfast_runs (unique_name) where unique_name is not null and finished_at is null;
CREATE INDEX holdfast_runs_lingering on holdfast_runs (unique_name)
    where unique_name is not null and finished_at is not null and session is not null;
CREATE VIEW holdfast_readable_runs as
select r.id, l.queue, l.task, r.state, r.held, r.priority, r.attempt, r.crashes, r.session, r.tenant, r.error,
    strftime('%Y-%m-%d %H:%M:%f', r.created_at / 1000000.0, 'unixepoch') as created, strftime('%Y-%m-%d %H:%M:%f', r.due_at / 1000000.0, 'unixepoch') as due, strftime('%Y-%m-%d %H:%M:%f', r.started_at / 1000000.0, 'unixepoch') as started,
    strftime('%Y-%m-%d %H:%M:%f', r.finished_at / 1000000.0, 'unixepoch') as finished
from holdfast_runs r join holdfast_lanes l on l.id = r.lane;
CREATE VIEW holdfast_readable_history as
select run, n, strftime('%Y-%m-%d %H:%M:%f', at / 1000000.0, 'unixepoch') as at, kind, attempt, session, strftime('%Y-%m-%d %H:%M:%f', since / 1000000.0, 'unixepoch') as since, data from holdfast_history;
CREATE VIEW holdfast_readable_workers as
select session, name, strftime('%Y-%m-%d %H:%M:%f', started_at / 1000000.0, 'unixepoch') as started, strftime('%Y-%m-%d %H:%M:%f', lease_until / 1000000.0, 'unixepoch') as lease_until, idle from holdfast_workers;
CREATE VIEW holdfast_paused_lanes as
select l.id from holdfast_queues q join holdfast_lanes l on l.queue = q.name where q.paused = 1;
CREATE VIEW holdfast_readable_queues as
select name, paused, strftime('%Y-%m-%d %H:%M:%f', paused_at / 1000000.0, 'unixepoch') as paused_since from holdfast_queues;
CREATE INDEX holdfast_runs_children on holdfast_runs (parent, spawn_key, place) where parent is not null;
CREATE INDEX holdfast_runs_tree on holdfast_runs (root) where root is not null;
CREATE INDEX holdfast_runs_asleep on holdfast_runs (lane) where state in ('waiting', 'blocked');
CREATE INDEX holdfast_waits_due on holdfast_waits (due_at) where outcome is null and due_at is not null;
CREATE INDEX holdfast_waits_event on holdfast_waits (target) where outcome is null and kind = 'event';
CREATE INDEX holdfast_events_more on holdfast_events (target) where more = 1;
CREATE INDEX holdfast_events_age on holdfast_events (touched_at);
CREATE INDEX holdfast_messages_new on holdfast_messages (run, topic, n) where taken_by is null;
CREATE VIEW holdfast_readable_checkpoints as
select run, generation, n, key, kind, value, took, strftime('%Y-%m-%d %H:%M:%f', at / 1000000.0, 'unixepoch') as at from holdfast_checkpoints;
CREATE VIEW holdfast_readable_waits as
select run, key, kind, target, pending, strftime('%Y-%m-%d %H:%M:%f', due_at / 1000000.0, 'unixepoch') as due, strftime('%Y-%m-%d %H:%M:%f', since / 1000000.0, 'unixepoch') as since, outcome from holdfast_waits;
CREATE VIEW holdfast_readable_events as
select tenant, name, payload, strftime('%Y-%m-%d %H:%M:%f', emitted_at / 1000000.0, 'unixepoch') as emitted from holdfast_events;
CREATE UNIQUE INDEX holdfast_runs_nodes on holdfast_runs (parent, node) where node is not null;
CREATE VIEW holdfast_shown_runs as
select r.id, l.queue, l.task,
    case
        when r.ending is not null and r.finished_at is null then 'undoing'
        when r.kind = 'graph' and r.state = 'waiting' and (
            select 1 from holdfast_runs n where n.parent = r.id and n.node is not null and n.state in ('ready', 'scheduled', 'running') limit 1
        ) = 1 then 'running'
        when r.kind = 'graph' and r.state = 'waiting' and r.parent is null and (
            select 1 from holdfast_runs n where n.root = r.id and n.state in ('ready', 'scheduled', 'running') limit 1
        ) = 1 then 'running'
        else r.state
    end as state,
    r.priority, r.attempt, r.crashes, r.error, r.result, r.created_at, r.started_at, r.finished_at, r.session, r.tenant, r.tags, r.due_at,
    r.claimed_at, r.held, r.parent, r.progress, case when r.ending is not null and r.state = 'running' then 1 else 0 end as undoing,
    r.kind, r.node, r.spawn_key, r.place, r.options, r.seq
from holdfast_runs r join holdfast_lanes l on l.id = r.lane;
CREATE INDEX holdfast_runs_parked on holdfast_runs (parked_on, priority desc, turn, seq) where held = 'full';
CREATE INDEX holdfast_runs_turns on holdfast_runs (lane, coalesce(tenant, ''), turn) where state = 'ready' and turn > 0;
CREATE INDEX holdfast_limits_look on holdfast_limits (look_at) where look_at is not null;
CREATE INDEX holdfast_limits_name on holdfast_limits (name);
CREATE INDEX holdfast_schedules_next on holdfast_schedules (kind, next_at) where paused = 0 and orphaned = 0;
CREATE UNIQUE INDEX holdfast_slots_once on holdfast_slots (schedule, slot) where asked = 0;
CREATE INDEX holdfast_slots_last on holdfast_slots (schedule, id);
CREATE INDEX holdfast_polls_last on holdfast_polls (trigger_name, id);
CREATE VIEW holdfast_readable_schedules as
select name, kind, app, task, timing, strftime('%Y-%m-%d %H:%M:%f', next_at / 1000000.0, 'unixepoch') as next, paused, orphaned, strftime('%Y-%m-%d %H:%M:%f', passed_at / 1000000.0, 'unixepoch') as passed,
    strftime('%Y-%m-%d %H:%M:%f', declared_at / 1000000.0, 'unixepoch') as declared
from holdfast_schedules;
CREATE INDEX holdfast_runs_unwell on holdfast_runs (state, id) where coalesce(finished_at, 0) > 0 and state <> 'done';
CREATE INDEX holdfast_runs_ended on holdfast_runs (lane, id) where coalesce(finished_at, 0) > 0;
CREATE INDEX holdfast_runs_tenant on holdfast_runs (tenant, id) where coalesce(finished_at, 0) > 0 and tenant is not null;
CREATE INDEX holdfast_runs_finished on holdfast_runs (finished_at) where finished_at > 0;
CREATE VIEW holdfast_readable_tallies as
select t.span / 1000000 as seconds, strftime('%Y-%m-%d %H:%M:%f', t.at / 1000000.0, 'unixepoch') as at, l.queue, l.task, t.state, t.runs, t.waits, t.takes
from holdfast_tallies t join holdfast_lanes l on l.id = t.lane;
CREATE VIEW holdfast_readable_tokens as
select id, name, may, tenant, strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') as created, strftime('%Y-%m-%d %H:%M:%f', revoked_at / 1000000.0, 'unixepoch') as revoked from holdfast_tokens;
CREATE INDEX holdfast_runs_blocked on holdfast_runs (parent, spawn_key, place) where state = 'blocked' and place is not null;
