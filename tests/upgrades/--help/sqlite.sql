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
, died_with int, status text);
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
    expires_at bigint, root text, parent text, spawn_key text, place int, generation int not null default 0, resumed smallint not null default 0, spent bigint not null default 0, undos smallint not null default 0, ending text check (ending in ('failed', 'cancelled')), cause text, progress text, kind text check (kind in ('graph', 'gate')), node text, pending int, plan text, limits text, parked_on text, deaths int not null default 0, isolation int,
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
    more smallint not null default 0, trace text,
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
CREATE TABLE holdfast_watchers (
    id text primary key,
    expires_at bigint not null
);
insert into "holdfast_meta" values ('schema', '15');
insert into "holdfast_meta" values ('oldest_code', '4');
insert into "holdfast_meta" values ('identity', '1d0d8e09ac97086cd4f3fb7dadf0a0dd');
insert into "holdfast_lanes" values (1, 'default', 'function', 0);
insert into "holdfast_lanes" values (2, 'default', 'plain', 0);
insert into "holdfast_lanes" values (3, 'default', 'held', 0);
insert into "holdfast_lanes" values (4, 'default', 'undoing', 0);
insert into "holdfast_lanes" values (5, 'default', 'job', 0);
insert into "holdfast_lanes" values (6, 'default', 'machine', 0);
insert into "holdfast_lanes" values (7, '$graph', 'gate', 0);
insert into "holdfast_lanes" values (8, '$graph', 'graph', 0);
insert into "holdfast_workers" values ('host:25631:757c58bcfca7', 'host:25631', 1794973977623000, 1794973975623000, 1, '{"queues": null, "concurrency": 30, "tasks": ["function", "held", "job", "machine", "plain", "undoing", "who"], "process_slots": 2, "process_tasks": []}', NULL, NULL);
insert into "holdfast_runs" values (1, '01a1ecc9-4333-7502-a11b-04ea67784f00', 1, NULL, 0, -998205026024269999, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"event","waits_for":"event"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975387000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 68000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (2, '01a1ecc9-435f-748c-b36d-e6ddaa940ae5', 1, NULL, 0, -998205026024269999, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"message","waits_for":"message"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975391000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 68000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (3, '01a1ecc9-4363-73f3-a12d-4078d3b8e88d', 1, NULL, 0, -998205026024261999, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"child","waits_for":"child"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975395000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 76000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (4, '01a1ecc9-4367-73f6-a0b4-d99d3c948927', 1, NULL, 0, -998205026024601000, 'running', NULL, NULL, NULL, NULL, 'host:25631:757c58bcfca7', 1, 1, 0, 0, 100, NULL, '{"mark":"map","waits_for":"map"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975399000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (5, '01a1ecc9-436b-73c1-9b00-365f31a3326d', 1, NULL, 0, -998205026024307999, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"time","waits_for":"time"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975403000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 30000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (6, '01a1ecc9-436f-73bf-aca0-64a7b1136e87', 1, NULL, 0, -998205026024593000, 'running', NULL, NULL, NULL, NULL, 'host:25631:757c58bcfca7', 1, 1, 0, 0, 100, NULL, '{"mark":"step","waits_for":"step"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975407000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (7, '01a1ecc9-4373-73bd-94b1-2e411b05fd0f', 2, NULL, 0, -998205026024278999, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"plain"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975411000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 59000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (8, '01a1ecc9-4377-73ea-8ee0-b02ac51836b5', 3, NULL, 0, -998205026024581000, 'running', NULL, NULL, NULL, NULL, 'host:25631:757c58bcfca7', 1, 1, 0, 0, 100, NULL, '{"mark":"held"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975419000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (9, '01a1ecc9-437f-740d-bc81-e40600f0c525', 4, NULL, 0, -998205026024303999, 'running', NULL, NULL, NULL, NULL, 'host:25631:757c58bcfca7', 2, 2, 0, 0, 100, NULL, '{"mark":"undoing"}', NULL, '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}', NULL, NULL, 2592000000000, 1, 1794973975427000, 1794973975699000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 1, 'failed', '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (10, '01a1ecc9-4387-739e-ace7-9f0675b8935f', 5, NULL, 0, -998205026024565000, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"done"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794973975435000, 1794973975662000, 1794973975662000, 1794973975666000, 1797565975666000, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (11, '01a1ecc9-438f-7b9e-8df1-0168dd4dd90e', 6, NULL, 0, -998205026024320999, 'scheduled', NULL, 1794973995679000, NULL, NULL, NULL, 1, 0, 0, 0, 100, NULL, '{"state":"Finish","fields":{"mark":"machine","more":1}}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975443000, 1794973975662000, 1794973975662000, NULL, NULL, NULL, NULL, NULL, NULL, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (12, '01a1ecc9-4397-79f2-9120-c82f518969a2', 8, NULL, 0, -998205026024549000, 'waiting', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 3, NULL, '{}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975451000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, 'graph', NULL, 3, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (13, '01a1ecc9-4397-7d04-8e6a-7b0c4db88a1c', 5, NULL, 0, -998205026024549000, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"graph-a"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794973975451000, 1794973975662000, 1794973975662000, 1794973975668000, NULL, '01a1ecc9-4397-79f2-9120-c82f518969a2', '01a1ecc9-4397-79f2-9120-c82f518969a2', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'a', NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (14, '01a1ecc9-4397-7d30-ae87-f658978c76ed', 7, NULL, 0, -998205026024549000, 'waiting', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 3, NULL, '{}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975451000, NULL, NULL, NULL, NULL, '01a1ecc9-4397-79f2-9120-c82f518969a2', '01a1ecc9-4397-79f2-9120-c82f518969a2', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, 'gate', 'ok', NULL, '{"on_timeout":"fail","schema":{"type":"string"}}', NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (15, '01a1ecc9-4397-7d58-9bb6-ec4eca5df9ad', 5, NULL, 0, -998205026024549000, 'blocked', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"graph-b"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975451000, NULL, NULL, NULL, NULL, '01a1ecc9-4397-79f2-9120-c82f518969a2', '01a1ecc9-4397-79f2-9120-c82f518969a2', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'b', 1, '{"rule":["all",[["done","ok"],["==",{"node":"ok","path":[]},{"value":"yes"}]]]}', NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (16, '01a1ecc9-4397-7d7a-a48a-a0f5cdccf47c', 5, NULL, 0, -998205026024549000, 'blocked', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"graph-c"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975451000, NULL, NULL, NULL, NULL, '01a1ecc9-4397-79f2-9120-c82f518969a2', '01a1ecc9-4397-79f2-9120-c82f518969a2', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'c', 1, '{"rule":["all",[["done","ok"],["==",{"node":"ok","path":[]},{"value":"no"}]]]}', NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (17, '01a1ecc9-447c-7483-bcd7-226f8f8b93ad', 1, NULL, 0, -998205026024252999, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"child-child","waits_for":"event"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975678000, 1794973975687000, 1794973975687000, NULL, NULL, '01a1ecc9-4363-73f3-a12d-4078d3b8e88d', '01a1ecc9-4363-73f3-a12d-4078d3b8e88d', '0:$spawn:function-1:906c7ccf94415b00#1', NULL, 0, 1, 60000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (18, '01a1ecc9-447c-760a-8e42-40aee5d39b3c', 5, NULL, 0, -998205026024322000, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"map-1"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794973975678000, 1794973975687000, 1794973975687000, 1794973975692000, NULL, '01a1ecc9-4367-73f6-a0b4-d99d3c948927', '01a1ecc9-4367-73f6-a0b4-d99d3c948927', '0:$map:job-1:f45024f71b6bc840#1', 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (19, '01a1ecc9-447c-7628-893a-d9da3be4c21d', 5, NULL, 0, -998205026024322000, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"map-2"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794973975678000, 1794973975687000, 1794973975687000, 1794973975692000, NULL, '01a1ecc9-4367-73f6-a0b4-d99d3c948927', '01a1ecc9-4367-73f6-a0b4-d99d3c948927', '0:$map:job-1:f45024f71b6bc840#1', 1, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (20, '01a1ecc9-44c7-75f1-b81a-5b01d7b97c2a', 5, NULL, 0, -998205026024249000, 'ready', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"ready"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975751000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_runs" values (21, '01a1ecc9-44cb-74ad-9c06-ebf0bbfdbb0c', 5, NULL, 0, -998205026024245000, 'scheduled', NULL, 1794973995755000, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"scheduled"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975755000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
insert into "holdfast_keys" values ('[null,"graph","graph"]', 'graph', '1:d29655b9843f708434ac59456bca4ffd48295a376a11d559b0d00cf61c5abb0b', '01a1ecc9-4397-79f2-9120-c82f518969a2', 1794973975451000);
insert into "holdfast_keys" values ('[null,"job"]', 'ready', '1:8bdc22dc6db46cd6cad4885b663bc0819f44a36dfa74cc554a15aef78bcab360', '01a1ecc9-44c7-75f1-b81a-5b01d7b97c2a', 1794973975751000);
insert into "holdfast_history" values ('01a1ecc9-4333-7502-a11b-04ea67784f00', 1, 1794973975731000, 'waiting', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, '{"waits_for":["$event:go event#1"]}');
insert into "holdfast_history" values ('01a1ecc9-435f-748c-b36d-e6ddaa940ae5', 1, 1794973975731000, 'waiting', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, '{"waits_for":["$message:note#1"]}');
insert into "holdfast_history" values ('01a1ecc9-4363-73f3-a12d-4078d3b8e88d', 1, 1794973975738000, 'waiting', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, '{"waits_for":["$join:$spawn:function-1:906c7ccf94415b00#1#1"]}');
insert into "holdfast_history" values ('01a1ecc9-436b-73c1-9b00-365f31a3326d', 1, 1794973975692000, 'waiting', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, '{"waits_for":["$sleep#1"]}');
insert into "holdfast_history" values ('01a1ecc9-4373-73bd-94b1-2e411b05fd0f', 1, 1794973975721000, 'waiting', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, '{"waits_for":["$message:note#1"]}');
insert into "holdfast_history" values ('01a1ecc9-437f-740d-bc81-e40600f0c525', 1, 1794973975696000, 'undoing', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}');
insert into "holdfast_history" values ('01a1ecc9-4387-739e-ace7-9f0675b8935f', 1, 1794973975666000, 'done', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, NULL);
insert into "holdfast_history" values ('01a1ecc9-438f-7b9e-8df1-0168dd4dd90e', 1, 1794973975679000, 'moved', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, '{"from":"Begin","to":"Finish","after":20.0}');
insert into "holdfast_history" values ('01a1ecc9-4397-7d04-8e6a-7b0c4db88a1c', 1, 1794973975668000, 'done', 1, 1, 'host:25631:757c58bcfca7', 1794973975662000, NULL);
insert into "holdfast_history" values ('01a1ecc9-447c-7483-bcd7-226f8f8b93ad', 1, 1794973975747000, 'waiting', 1, 1, 'host:25631:757c58bcfca7', 1794973975687000, '{"waits_for":["$event:go child-child#1"]}');
insert into "holdfast_history" values ('01a1ecc9-447c-760a-8e42-40aee5d39b3c', 1, 1794973975692000, 'done', 1, 1, 'host:25631:757c58bcfca7', 1794973975687000, NULL);
insert into "holdfast_history" values ('01a1ecc9-447c-7628-893a-d9da3be4c21d', 1, 1794973975692000, 'done', 1, 1, 'host:25631:757c58bcfca7', 1794973975687000, NULL);
insert into "holdfast_checkpoints" values ('01a1ecc9-4333-7502-a11b-04ea67784f00', 0, 1, 'effect-1:16b46a7a38e1bc8d#1', 'step', '"before"', 1, 0, 2350, 1794973975675000);
insert into "holdfast_checkpoints" values ('01a1ecc9-435f-748c-b36d-e6ddaa940ae5', 0, 1, 'effect-1:174cbad1524b5543#1', 'step', '"before"', 1, 0, 1428, 1794973975675000);
insert into "holdfast_checkpoints" values ('01a1ecc9-4363-73f3-a12d-4078d3b8e88d', 0, 1, 'effect-1:03b937c31a593923#1', 'step', '"before"', 1, 0, 1413, 1794973975675000);
insert into "holdfast_checkpoints" values ('01a1ecc9-4363-73f3-a12d-4078d3b8e88d', 0, 2, '$spawn:function-1:906c7ccf94415b00#1', 'spawn', '"01a1ecc9-447c-7483-bcd7-226f8f8b93ad"', 1, 0, NULL, 1794973975678000);
insert into "holdfast_checkpoints" values ('01a1ecc9-4367-73f6-a0b4-d99d3c948927', 0, 1, 'effect-1:d9f4cc15b3d37235#1', 'step', '"before"', 1, 0, 1153, 1794973975675000);
insert into "holdfast_checkpoints" values ('01a1ecc9-4367-73f6-a0b4-d99d3c948927', 0, 2, '$map:job-1:f45024f71b6bc840#1', 'map', '{"children":2}', 1, 0, NULL, 1794973975678000);
insert into "holdfast_checkpoints" values ('01a1ecc9-4367-73f6-a0b4-d99d3c948927', 0, 4, '$join:$map:job-1:f45024f71b6bc840#1#1', 'join', NULL, 1, 0, NULL, 1794973975697000);
insert into "holdfast_checkpoints" values ('01a1ecc9-436b-73c1-9b00-365f31a3326d', 0, 1, 'effect-1:2e3baea6d789a643#1', 'step', '"before"', 1, 0, 1059, 1794973975675000);
insert into "holdfast_checkpoints" values ('01a1ecc9-436f-73bf-aca0-64a7b1136e87', 0, 1, 'effect-1:3d61168ca78cedeb#1', 'step', '"before"', 1, 0, 1032, 1794973975675000);
insert into "holdfast_checkpoints" values ('01a1ecc9-4373-73bd-94b1-2e411b05fd0f', 0, 1, 'effect-1:de34097db0766f26#1', 'step', '"before"', 1, 0, 220, 1794973975665000);
insert into "holdfast_checkpoints" values ('01a1ecc9-437f-740d-bc81-e40600f0c525', 0, 1, 'one-1:c9fdc2a11b01a81f#1', 'step', '"one"', 1, 1, 4275, 1794973975676000);
insert into "holdfast_checkpoints" values ('01a1ecc9-437f-740d-bc81-e40600f0c525', 0, 2, 'two-1:191acd118cd41818#1', 'step', '"two"', 1, 1, 607, 1794973975688000);
insert into "holdfast_checkpoints" values ('01a1ecc9-447c-7483-bcd7-226f8f8b93ad', 0, 1, 'effect-1:1b7eb8b4895b831c#1', 'step', '"before"', 1, 0, 138, 1794973975691000);
insert into "holdfast_waits" values ('01a1ecc9-4333-7502-a11b-04ea67784f00', 0, '$event:go event#1', 'event', '[null,"go event"]', 0, NULL, NULL, 1794973975678000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1ecc9-435f-748c-b36d-e6ddaa940ae5', 0, '$message:note#1', 'message', 'note', 0, NULL, NULL, 1794973975678000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1ecc9-4363-73f3-a12d-4078d3b8e88d', 0, '$join:$spawn:function-1:906c7ccf94415b00#1#1', 'children', '0:$spawn:function-1:906c7ccf94415b00#1', 0, 1, NULL, 1794973975683000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1ecc9-4367-73f6-a0b4-d99d3c948927', 0, '$sleep#1', 'sleep', NULL, 0, NULL, 1794973995701000, 1794973975701000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1ecc9-436b-73c1-9b00-365f31a3326d', 0, '$sleep#1', 'sleep', NULL, 0, NULL, 1794973995678000, 1794973975678000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1ecc9-4373-73bd-94b1-2e411b05fd0f', 0, '$message:note#1', 'message', 'note', 0, NULL, NULL, 1794973975670000, NULL, NULL, NULL);
insert into "holdfast_waits" values ('01a1ecc9-447c-7483-bcd7-226f8f8b93ad', 0, '$event:go child-child#1', 'event', '[null,"go child-child"]', 0, NULL, NULL, 1794973975695000, NULL, NULL, NULL);
insert into "holdfast_events" values ('[null,"go event"]', NULL, 'go event', NULL, 1794973975677000, NULL, NULL, 0, NULL);
insert into "holdfast_events" values ('[null,"go child-child"]', NULL, 'go child-child', NULL, 1794973975695000, NULL, NULL, 0, NULL);
insert into "holdfast_edges" values ('01a1ecc9-4397-7d04-8e6a-7b0c4db88a1c', '01a1ecc9-4397-7d30-ae87-f658978c76ed');
insert into "holdfast_edges" values ('01a1ecc9-4397-7d30-ae87-f658978c76ed', '01a1ecc9-4397-7d58-9bb6-ec4eca5df9ad');
insert into "holdfast_edges" values ('01a1ecc9-4397-7d30-ae87-f658978c76ed', '01a1ecc9-4397-7d7a-a48a-a0f5cdccf47c');
insert into "holdfast_tallies" values (60000000, 1794970500000000, 0, 'done', 0, '[]', '[]');
insert into "holdfast_tallies" values (3600000000, 1794963600000000, 0, 'done', 0, '[]', '[]');
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
CREATE VIEW holdfast_readable_watchers as
select id, strftime('%Y-%m-%d %H:%M:%f', expires_at / 1000000.0, 'unixepoch') as expires from holdfast_watchers;
