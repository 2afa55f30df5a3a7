SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA holdfast;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE holdfast.checkpoints (
    run uuid NOT NULL,
    generation integer NOT NULL,
    n integer NOT NULL,
    key text NOT NULL,
    kind text NOT NULL,
    value text,
    fence bigint NOT NULL,
    undo smallint DEFAULT 0 NOT NULL,
    took bigint,
    at bigint NOT NULL
);
CREATE TABLE holdfast.chunks (
    run uuid NOT NULL,
    n integer NOT NULL,
    attempt integer NOT NULL,
    data text NOT NULL,
    at bigint NOT NULL
);
CREATE TABLE holdfast.edges (
    needs uuid NOT NULL,
    node uuid NOT NULL
);
CREATE TABLE holdfast.events (
    target text NOT NULL,
    tenant text,
    name text NOT NULL,
    payload text,
    touched_at bigint NOT NULL,
    emitted_at bigint,
    emitted_by text,
    more smallint DEFAULT 0 NOT NULL,
    trace text,
    CONSTRAINT events_check CHECK (((emitted_at IS NULL) OR (payload IS NOT NULL)))
);
CREATE TABLE holdfast.history (
    run uuid NOT NULL,
    n integer NOT NULL,
    at bigint NOT NULL,
    kind text NOT NULL,
    attempt integer NOT NULL,
    fence bigint,
    session text,
    since bigint,
    data text
);
CREATE TABLE holdfast.keys (
    scope text NOT NULL,
    key text NOT NULL,
    digest text NOT NULL,
    run uuid NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE holdfast.lanes (
    id bigint NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    limited smallint DEFAULT 0 NOT NULL
);
ALTER TABLE holdfast.lanes ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME holdfast.lanes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE holdfast.limit_settings (
    name text NOT NULL,
    concurrency integer,
    rate integer,
    period bigint,
    declared_at bigint NOT NULL
);
CREATE TABLE holdfast.limits (
    place text NOT NULL,
    name text NOT NULL,
    used integer DEFAULT 0 NOT NULL,
    log text DEFAULT '[]'::text NOT NULL,
    look_at bigint,
    touched_at bigint NOT NULL,
    CONSTRAINT limits_used_check CHECK ((used >= 0))
)
WITH (fillfactor='50');
CREATE TABLE holdfast.messages (
    run uuid NOT NULL,
    n integer NOT NULL,
    topic text NOT NULL,
    payload text NOT NULL,
    sent_at bigint NOT NULL,
    sent_by text,
    taken_by text
);
CREATE TABLE holdfast.meta (
    name text NOT NULL,
    value text NOT NULL
);
CREATE TABLE holdfast.queues (
    name text NOT NULL,
    paused smallint DEFAULT 0 NOT NULL,
    paused_at bigint,
    CONSTRAINT queues_check CHECK (((paused = 1) = (paused_at IS NOT NULL)))
);
CREATE VIEW holdfast.paused_lanes AS
 SELECT l.id
   FROM (holdfast.queues q
     JOIN holdfast.lanes l ON ((l.queue = q.name)))
  WHERE (q.paused = 1);
CREATE TABLE holdfast.polls (
    id bigint NOT NULL,
    trigger_name text NOT NULL,
    at bigint NOT NULL,
    took bigint NOT NULL,
    found integer NOT NULL,
    made integer NOT NULL,
    error text
);
ALTER TABLE holdfast.polls ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME holdfast.polls_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW holdfast.readable_checkpoints AS
 SELECT run,
    generation,
    n,
    key,
    kind,
    value,
    took,
    to_timestamp((((at)::numeric / 1000000.0))::double precision) AS at
   FROM holdfast.checkpoints;
CREATE VIEW holdfast.readable_events AS
 SELECT tenant,
    name,
    payload,
    to_timestamp((((emitted_at)::numeric / 1000000.0))::double precision) AS emitted
   FROM holdfast.events;
CREATE VIEW holdfast.readable_history AS
 SELECT run,
    n,
    to_timestamp((((at)::numeric / 1000000.0))::double precision) AS at,
    kind,
    attempt,
    session,
    to_timestamp((((since)::numeric / 1000000.0))::double precision) AS since,
    data
   FROM holdfast.history;
CREATE VIEW holdfast.readable_queues AS
 SELECT name,
    paused,
    to_timestamp((((paused_at)::numeric / 1000000.0))::double precision) AS paused_since
   FROM holdfast.queues;
CREATE TABLE holdfast.runs (
    id uuid NOT NULL,
    seq bigint NOT NULL,
    lane bigint NOT NULL,
    tenant text,
    priority integer NOT NULL,
    turn bigint DEFAULT 0 NOT NULL,
    state text NOT NULL,
    held text,
    due_at bigint,
    deadline bigint,
    lifetime bigint,
    session text,
    fence bigint DEFAULT 0 NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    max_crashes integer NOT NULL,
    unique_name text,
    args text NOT NULL,
    result text,
    error text,
    options text,
    tags text,
    keep bigint NOT NULL,
    records integer DEFAULT 0 NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    started_at bigint,
    finished_at bigint,
    expires_at bigint,
    root uuid,
    parent uuid,
    spawn_key text,
    place integer,
    generation integer DEFAULT 0 NOT NULL,
    resumed smallint DEFAULT 0 NOT NULL,
    spent bigint DEFAULT 0 NOT NULL,
    undos smallint DEFAULT 0 NOT NULL,
    ending text,
    cause text,
    progress text,
    kind text,
    node text,
    pending integer,
    plan text,
    limits text,
    parked_on text,
    deaths integer DEFAULT 0 NOT NULL,
    isolation integer,
    CONSTRAINT runs_check CHECK (((state = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text, 'skipped'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT runs_check1 CHECK (((state <> 'running'::text) OR (session IS NOT NULL))),
    CONSTRAINT runs_check2 CHECK (((state <> 'scheduled'::text) OR (due_at IS NOT NULL))),
    CONSTRAINT runs_ending_check CHECK ((ending = ANY (ARRAY['failed'::text, 'cancelled'::text]))),
    CONSTRAINT runs_kind_check CHECK ((kind = ANY (ARRAY['graph'::text, 'gate'::text]))),
    CONSTRAINT runs_state_check CHECK ((state = ANY (ARRAY['blocked'::text, 'scheduled'::text, 'ready'::text, 'running'::text, 'waiting'::text, 'undoing'::text, 'done'::text, 'failed'::text, 'cancelled'::text, 'skipped'::text])))
)
WITH (fillfactor='50', autovacuum_analyze_scale_factor='0.2', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_limit='2000');
CREATE VIEW holdfast.readable_runs AS
 SELECT r.id,
    l.queue,
    l.task,
    r.state,
    r.held,
    r.priority,
    r.attempt,
    r.crashes,
    r.session,
    r.tenant,
    r.error,
    to_timestamp((((r.created_at)::numeric / 1000000.0))::double precision) AS created,
    to_timestamp((((r.due_at)::numeric / 1000000.0))::double precision) AS due,
    to_timestamp((((r.started_at)::numeric / 1000000.0))::double precision) AS started,
    to_timestamp((((r.finished_at)::numeric / 1000000.0))::double precision) AS finished
   FROM (holdfast.runs r
     JOIN holdfast.lanes l ON ((l.id = r.lane)));
CREATE TABLE holdfast.schedules (
    name text NOT NULL,
    kind text NOT NULL,
    app text NOT NULL,
    queue text,
    task text,
    timing text NOT NULL,
    rules text NOT NULL,
    template text,
    next_at bigint,
    paused smallint DEFAULT 0 NOT NULL,
    orphaned smallint DEFAULT 0 NOT NULL,
    passed_at bigint,
    declared_at bigint NOT NULL,
    poller text,
    poll_until bigint,
    polls bigint DEFAULT 0 NOT NULL,
    CONSTRAINT schedules_check CHECK (((kind = 'schedule'::text) = (template IS NOT NULL))),
    CONSTRAINT schedules_check1 CHECK (((poller IS NULL) = (poll_until IS NULL))),
    CONSTRAINT schedules_kind_check CHECK ((kind = ANY (ARRAY['schedule'::text, 'trigger'::text])))
);
CREATE VIEW holdfast.readable_schedules AS
 SELECT name,
    kind,
    app,
    task,
    timing,
    to_timestamp((((next_at)::numeric / 1000000.0))::double precision) AS next,
    paused,
    orphaned,
    to_timestamp((((passed_at)::numeric / 1000000.0))::double precision) AS passed,
    to_timestamp((((declared_at)::numeric / 1000000.0))::double precision) AS declared
   FROM holdfast.schedules;
CREATE TABLE holdfast.tallies (
    span bigint NOT NULL,
    at bigint NOT NULL,
    lane bigint NOT NULL,
    state text NOT NULL,
    runs bigint NOT NULL,
    waits text NOT NULL,
    takes text NOT NULL
);
CREATE VIEW holdfast.readable_tallies AS
 SELECT (t.span / 1000000) AS seconds,
    to_timestamp((((t.at)::numeric / 1000000.0))::double precision) AS at,
    l.queue,
    l.task,
    t.state,
    t.runs,
    t.waits,
    t.takes
   FROM (holdfast.tallies t
     JOIN holdfast.lanes l ON ((l.id = t.lane)));
CREATE TABLE holdfast.tokens (
    id text NOT NULL,
    hash text NOT NULL,
    name text NOT NULL,
    may text NOT NULL,
    tenant text,
    created_at bigint NOT NULL,
    revoked_at bigint,
    CONSTRAINT tokens_may_check CHECK ((may = ANY (ARRAY['read'::text, 'operate'::text])))
);
CREATE VIEW holdfast.readable_tokens AS
 SELECT id,
    name,
    may,
    tenant,
    to_timestamp((((created_at)::numeric / 1000000.0))::double precision) AS created,
    to_timestamp((((revoked_at)::numeric / 1000000.0))::double precision) AS revoked
   FROM holdfast.tokens;
CREATE TABLE holdfast.waits (
    run uuid NOT NULL,
    generation integer NOT NULL,
    key text NOT NULL,
    kind text NOT NULL,
    target text,
    eager smallint DEFAULT 0 NOT NULL,
    pending integer,
    due_at bigint,
    since bigint NOT NULL,
    outcome text,
    value text,
    settled_at bigint,
    CONSTRAINT waits_check CHECK (((outcome IS NULL) = (settled_at IS NULL))),
    CONSTRAINT waits_kind_check CHECK ((kind = ANY (ARRAY['sleep'::text, 'event'::text, 'message'::text, 'children'::text]))),
    CONSTRAINT waits_outcome_check CHECK ((outcome = ANY (ARRAY['due'::text, 'event'::text, 'message'::text, 'children'::text, 'failed'::text])))
);
CREATE VIEW holdfast.readable_waits AS
 SELECT run,
    key,
    kind,
    target,
    pending,
    to_timestamp((((due_at)::numeric / 1000000.0))::double precision) AS due,
    to_timestamp((((since)::numeric / 1000000.0))::double precision) AS since,
    outcome
   FROM holdfast.waits;
CREATE TABLE holdfast.watchers (
    id text NOT NULL,
    expires_at bigint NOT NULL
);
CREATE VIEW holdfast.readable_watchers AS
 SELECT id,
    to_timestamp((((expires_at)::numeric / 1000000.0))::double precision) AS expires
   FROM holdfast.watchers;
CREATE TABLE holdfast.workers (
    session text NOT NULL,
    name text NOT NULL,
    lease_until bigint NOT NULL,
    started_at bigint NOT NULL,
    idle smallint DEFAULT 0 NOT NULL,
    info text NOT NULL,
    died_with integer,
    status text
);
CREATE VIEW holdfast.readable_workers AS
 SELECT session,
    name,
    to_timestamp((((started_at)::numeric / 1000000.0))::double precision) AS started,
    to_timestamp((((lease_until)::numeric / 1000000.0))::double precision) AS lease_until,
    idle
   FROM holdfast.workers;
ALTER TABLE holdfast.runs ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME holdfast.runs_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW holdfast.shown_runs AS
 SELECT r.id,
    l.queue,
    l.task,
        CASE
            WHEN ((r.ending IS NOT NULL) AND (r.finished_at IS NULL)) THEN 'undoing'::text
            WHEN ((r.kind = 'graph'::text) AND (r.state = 'waiting'::text) AND (( SELECT 1
               FROM holdfast.runs n
              WHERE ((n.parent = r.id) AND (n.node IS NOT NULL) AND (n.state = ANY (ARRAY['ready'::text, 'scheduled'::text, 'running'::text])))
             LIMIT 1) = 1)) THEN 'running'::text
            WHEN ((r.kind = 'graph'::text) AND (r.state = 'waiting'::text) AND (r.parent IS NULL) AND (( SELECT 1
               FROM holdfast.runs n
              WHERE ((n.root = r.id) AND (n.state = ANY (ARRAY['ready'::text, 'scheduled'::text, 'running'::text])))
             LIMIT 1) = 1)) THEN 'running'::text
            ELSE r.state
        END AS state,
    r.priority,
    r.attempt,
    r.crashes,
    r.error,
    r.result,
    r.created_at,
    r.started_at,
    r.finished_at,
    r.session,
    r.tenant,
    r.tags,
    r.due_at,
    r.claimed_at,
    r.held,
    r.parent,
    r.progress,
        CASE
            WHEN ((r.ending IS NOT NULL) AND (r.state = 'running'::text)) THEN 1
            ELSE 0
        END AS undoing,
    r.kind,
    r.node,
    r.spawn_key,
    r.place,
    r.options,
    r.seq
   FROM (holdfast.runs r
     JOIN holdfast.lanes l ON ((l.id = r.lane)));
CREATE TABLE holdfast.slots (
    id bigint NOT NULL,
    schedule text NOT NULL,
    slot bigint NOT NULL,
    asked smallint DEFAULT 0 NOT NULL,
    run uuid NOT NULL
);
ALTER TABLE holdfast.slots ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME holdfast.slots_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-4568-7723-a11a-805c47495f60', 0, 1, 'effect-1:de34097db0766f26#1', 'step', '"before"', 1, 0, 567, 1794973976260601);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-450b-762c-a946-8cb8c2531ada', 0, 1, 'effect-1:16b46a7a38e1bc8d#1', 'step', '"before"', 1, 0, 6338, 1794973976265483);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-455f-731a-a01b-ad407ac0f654', 0, 1, 'effect-1:174cbad1524b5543#1', 'step', '"before"', 1, 0, 4399, 1794973976265483);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-455f-7bde-a958-cd0d4016490d', 0, 1, 'effect-1:03b937c31a593923#1', 'step', '"before"', 1, 0, 4222, 1794973976265483);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', 0, 1, 'effect-1:d9f4cc15b3d37235#1', 'step', '"before"', 1, 0, 3337, 1794973976265483);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-4567-7e71-b35c-e3e5f6798267', 0, 1, 'effect-1:2e3baea6d789a643#1', 'step', '"before"', 1, 0, 2739, 1794973976265483);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-4568-72f8-8527-29848ce74951', 0, 1, 'effect-1:3d61168ca78cedeb#1', 'step', '"before"', 1, 0, 1089, 1794973976265483);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-455f-7bde-a958-cd0d4016490d', 0, 2, '$spawn:function-1:906c7ccf94415b00#1', 'spawn', '"01a1ecc9-46ca-78f7-b36c-2a629c03f40a"', 1, 0, NULL, 1794973976273629);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', 0, 2, '$map:job-1:f45024f71b6bc840#1', 'map', '{"children":2}', 1, 0, NULL, 1794973976273629);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-4569-7db8-94e6-b735a1a3a0c9', 0, 1, 'one-1:c9fdc2a11b01a81f#1', 'step', '"one"', 1, 1, 185, 1794973976278386);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-46ca-78f7-b36c-2a629c03f40a', 0, 1, 'effect-1:1b7eb8b4895b831c#1', 'step', '"before"', 1, 0, 177, 1794973976288883);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-4569-7db8-94e6-b735a1a3a0c9', 0, 2, 'two-1:191acd118cd41818#1', 'step', '"two"', 1, 1, 90, 1794973976289622);
INSERT INTO holdfast.checkpoints VALUES ('01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', 0, 4, '$join:$map:job-1:f45024f71b6bc840#1#1', 'join', NULL, 1, 0, NULL, 1794973976301795);
INSERT INTO holdfast.edges VALUES ('01a1ecc9-4570-7291-bdc4-89983d63bb79', '01a1ecc9-4570-72bc-8193-4ec9e7103f2b');
INSERT INTO holdfast.edges VALUES ('01a1ecc9-4570-72bc-8193-4ec9e7103f2b', '01a1ecc9-4570-72e8-a840-e44c9698a3b6');
INSERT INTO holdfast.edges VALUES ('01a1ecc9-4570-72bc-8193-4ec9e7103f2b', '01a1ecc9-4570-7305-84da-af824a62a34a');
INSERT INTO holdfast.events VALUES ('[null,"go event"]', NULL, 'go event', NULL, 1794973976273629, NULL, NULL, 0, NULL);
INSERT INTO holdfast.events VALUES ('[null,"go child-child"]', NULL, 'go child-child', NULL, 1794973976294426, NULL, NULL, 0, NULL);
INSERT INTO holdfast.history VALUES ('01a1ecc9-456a-748d-b49f-ad683e89c75b', 1, 1794973976267063, 'done', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, NULL);
INSERT INTO holdfast.history VALUES ('01a1ecc9-4570-7291-bdc4-89983d63bb79', 1, 1794973976268570, 'done', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, NULL);
INSERT INTO holdfast.history VALUES ('01a1ecc9-456a-7e83-bd22-f82c9b4bd566', 1, 1794973976279915, 'moved', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, '{"from":"Begin","to":"Finish","after":20.0}');
INSERT INTO holdfast.history VALUES ('01a1ecc9-46ca-7a11-8ef4-b93a9938f7e5', 1, 1794973976290479, 'done', 1, 1, 'host:25662:b984d8605df9', 1794973976278285, NULL);
INSERT INTO holdfast.history VALUES ('01a1ecc9-46ca-7a2d-b848-927a5426d910', 1, 1794973976290479, 'done', 1, 1, 'host:25662:b984d8605df9', 1794973976278285, NULL);
INSERT INTO holdfast.history VALUES ('01a1ecc9-4567-7e71-b35c-e3e5f6798267', 1, 1794973976290479, 'waiting', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, '{"waits_for":["$sleep#1"]}');
INSERT INTO holdfast.history VALUES ('01a1ecc9-4569-7db8-94e6-b735a1a3a0c9', 1, 1794973976299669, 'undoing', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}');
INSERT INTO holdfast.history VALUES ('01a1ecc9-455f-731a-a01b-ad407ac0f654', 1, 1794973976328760, 'waiting', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, '{"waits_for":["$message:note#1"]}');
INSERT INTO holdfast.history VALUES ('01a1ecc9-450b-762c-a946-8cb8c2531ada', 1, 1794973976328760, 'waiting', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, '{"waits_for":["$event:go event#1"]}');
INSERT INTO holdfast.history VALUES ('01a1ecc9-4568-7723-a11a-805c47495f60', 1, 1794973976328760, 'waiting', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, '{"waits_for":["$message:note#1"]}');
INSERT INTO holdfast.history VALUES ('01a1ecc9-455f-7bde-a958-cd0d4016490d', 1, 1794973976339373, 'waiting', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, '{"waits_for":["$join:$spawn:function-1:906c7ccf94415b00#1#1"]}');
INSERT INTO holdfast.history VALUES ('01a1ecc9-46ca-78f7-b36c-2a629c03f40a', 1, 1794973976349740, 'waiting', 1, 1, 'host:25662:b984d8605df9', 1794973976278285, '{"waits_for":["$event:go child-child#1"]}');
INSERT INTO holdfast.history VALUES ('01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', 1, 1794973976354049, 'waiting', 1, 1, 'host:25662:b984d8605df9', 1794973976250826, '{"waits_for":["$sleep#1"]}');
INSERT INTO holdfast.keys VALUES ('[null,"graph","graph"]', 'graph', '1:d29655b9843f708434ac59456bca4ffd48295a376a11d559b0d00cf61c5abb0b', '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', 1794973975920596);
INSERT INTO holdfast.keys VALUES ('[null,"job"]', 'ready', '1:8bdc22dc6db46cd6cad4885b663bc0819f44a36dfa74cc554a15aef78bcab360', '01a1ecc9-472a-70af-af9d-7e2997c0afac', 1794973976362166);
INSERT INTO holdfast.lanes OVERRIDING SYSTEM VALUE VALUES (1, 'default', 'function', 0);
INSERT INTO holdfast.lanes OVERRIDING SYSTEM VALUE VALUES (2, 'default', 'plain', 0);
INSERT INTO holdfast.lanes OVERRIDING SYSTEM VALUE VALUES (3, 'default', 'held', 0);
INSERT INTO holdfast.lanes OVERRIDING SYSTEM VALUE VALUES (4, 'default', 'undoing', 0);
INSERT INTO holdfast.lanes OVERRIDING SYSTEM VALUE VALUES (5, 'default', 'job', 0);
INSERT INTO holdfast.lanes OVERRIDING SYSTEM VALUE VALUES (6, 'default', 'machine', 0);
INSERT INTO holdfast.lanes OVERRIDING SYSTEM VALUE VALUES (7, '$graph', 'gate', 0);
INSERT INTO holdfast.lanes OVERRIDING SYSTEM VALUE VALUES (8, '$graph', 'graph', 0);
INSERT INTO holdfast.meta VALUES ('oldest_code', '4');
INSERT INTO holdfast.meta VALUES ('schema', '15');
INSERT INTO holdfast.meta VALUES ('identity', '224f7218496074aba6cfa5be2595b048');
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4570-72e8-a840-e44c9698a3b6', 15, 5, NULL, 0, -998205026024079404, 'blocked', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"graph-b"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975920596, NULL, NULL, NULL, NULL, '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'b', 1, '{"rule":["all",[["done","ok"],["==",{"node":"ok","path":[]},{"value":"yes"}]]]}', NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4570-7305-84da-af824a62a34a', 16, 5, NULL, 0, -998205026024079404, 'blocked', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"graph-c"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975920596, NULL, NULL, NULL, NULL, '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'c', 1, '{"rule":["all",[["done","ok"],["==",{"node":"ok","path":[]},{"value":"no"}]]]}', NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4568-72f8-8527-29848ce74951', 6, 1, NULL, 0, -998205026024087762, 'running', NULL, NULL, NULL, NULL, 'host:25662:b984d8605df9', 1, 1, 0, 0, 100, NULL, '{"mark":"step","waits_for":"step"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975912238, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4569-731b-8048-d679884dd465', 8, 3, NULL, 0, -998205026024086393, 'running', NULL, NULL, NULL, NULL, 'host:25662:b984d8605df9', 1, 1, 0, 0, 100, NULL, '{"mark":"held"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975913607, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4569-7db8-94e6-b735a1a3a0c9', 9, 4, NULL, 0, -998205026023700330, 'running', NULL, NULL, NULL, NULL, 'host:25662:b984d8605df9', 2, 2, 0, 0, 100, NULL, '{"mark":"undoing"}', NULL, '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}', NULL, NULL, 2592000000000, 1, 1794973975914164, 1794973976301780, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 1, 'failed', '{"code":"fatal","type":"holdfast.errors.Fatal","message":"enough","traceback":"Traceback (most recent call last):\n  File \"tests/upgrades/tasks.py\", line 114, in undoing\n    raise Fatal(\"enough\")\nholdfast.errors.Fatal: enough\n"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-456a-748d-b49f-ad683e89c75b', 10, 5, NULL, 0, -998205026024085433, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"done"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794973975914567, 1794973976250826, 1794973976250826, 1794973976267063, 1797565976267063, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4570-7291-bdc4-89983d63bb79', 13, 5, NULL, 0, -998205026024079404, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"graph-a"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794973975920596, 1794973976250826, 1794973976250826, 1794973976268570, NULL, '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'a', NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', 12, 8, NULL, 0, -998205026024079404, 'waiting', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 3, NULL, '{}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975920596, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, 'graph', NULL, 3, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-456a-7e83-bd22-f82c9b4bd566', 11, 6, NULL, 0, -998205026023720084, 'scheduled', NULL, 1794973996279915, NULL, NULL, NULL, 1, 0, 0, 0, 100, NULL, '{"state":"Finish","fields":{"mark":"machine","more":1}}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975919527, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4570-72bc-8193-4ec9e7103f2b', 14, 7, NULL, 0, -998205026024079404, 'waiting', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 3, NULL, '{}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973975920596, NULL, NULL, NULL, NULL, '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', '01a1ecc9-456f-7f7f-9b32-e7e79c2cd3bb', NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, 'gate', 'ok', NULL, '{"on_timeout":"fail","schema":{"type":"string"}}', NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4567-7e71-b35c-e3e5f6798267', 5, 1, NULL, 0, -998205026023709520, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"time","waits_for":"time"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975911961, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 39653, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-455f-731a-a01b-ad407ac0f654', 2, 1, NULL, 0, -998205026023671239, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"message","waits_for":"message"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975903284, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 77934, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-450b-762c-a946-8cb8c2531ada', 1, 1, NULL, 0, -998205026023671239, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"event","waits_for":"event"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975901989, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 77934, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4568-7723-a11a-805c47495f60', 7, 2, NULL, 0, -998205026023671239, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"plain"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975912904, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 77934, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-455f-7bde-a958-cd0d4016490d', 3, 1, NULL, 0, -998205026023660626, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"child","waits_for":"child"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975911226, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 88547, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', 4, 1, NULL, 0, -998205026023645950, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"map","waits_for":"map"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973975911661, 1794973976250826, 1794973976250826, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 103223, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-46ca-7a11-8ef4-b93a9938f7e5', 18, 5, NULL, 0, -998205026023726371, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"map-1"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794973976273629, 1794973976278285, 1794973976278285, 1794973976290479, NULL, '01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', '01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', '0:$map:job-1:f45024f71b6bc840#1', 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-46ca-7a2d-b848-927a5426d910', 19, 5, NULL, 0, -998205026023726371, 'done', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"map-2"}', '"job"', NULL, NULL, NULL, 2592000000000, 1, 1794973976273629, 1794973976278285, 1794973976278285, 1794973976290479, NULL, '01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', '01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', '0:$map:job-1:f45024f71b6bc840#1', 1, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-46ca-78f7-b36c-2a629c03f40a', 17, 1, NULL, 0, -998205026023650259, 'waiting', NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, 100, NULL, '{"mark":"child-child","waits_for":"event"}', NULL, NULL, NULL, NULL, 2592000000000, 1, 1794973976273629, 1794973976278285, 1794973976278285, NULL, NULL, '01a1ecc9-455f-7bde-a958-cd0d4016490d', '01a1ecc9-455f-7bde-a958-cd0d4016490d', '0:$spawn:function-1:906c7ccf94415b00#1', NULL, 0, 1, 71455, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-472a-70af-af9d-7e2997c0afac', 20, 5, NULL, 0, -998205026023637834, 'ready', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"ready"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973976362166, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.runs OVERRIDING SYSTEM VALUE VALUES ('01a1ecc9-472d-715e-b668-4488a1f551b8', 21, 5, NULL, 0, -998205026023634831, 'scheduled', NULL, 1794973996365169, NULL, NULL, NULL, 0, 0, 0, 0, 100, NULL, '{"mark":"scheduled"}', NULL, NULL, NULL, NULL, 2592000000000, 0, 1794973976365169, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
INSERT INTO holdfast.tallies VALUES (60000000, 1794970500000000, 0, 'done', 0, '[]', '[]');
INSERT INTO holdfast.tallies VALUES (3600000000, 1794963600000000, 0, 'done', 0, '[]', '[]');
INSERT INTO holdfast.waits VALUES ('01a1ecc9-4568-7723-a11a-805c47495f60', 0, '$message:note#1', 'message', 'note', 0, NULL, NULL, 1794973976273629, NULL, NULL, NULL);
INSERT INTO holdfast.waits VALUES ('01a1ecc9-455f-731a-a01b-ad407ac0f654', 0, '$message:note#1', 'message', 'note', 0, NULL, NULL, 1794973976273629, NULL, NULL, NULL);
INSERT INTO holdfast.waits VALUES ('01a1ecc9-450b-762c-a946-8cb8c2531ada', 0, '$event:go event#1', 'event', '[null,"go event"]', 0, NULL, NULL, 1794973976273629, NULL, NULL, NULL);
INSERT INTO holdfast.waits VALUES ('01a1ecc9-4567-7e71-b35c-e3e5f6798267', 0, '$sleep#1', 'sleep', NULL, 0, NULL, 1794973996273629, 1794973976273629, NULL, NULL, NULL);
INSERT INTO holdfast.waits VALUES ('01a1ecc9-455f-7bde-a958-cd0d4016490d', 0, '$join:$spawn:function-1:906c7ccf94415b00#1#1', 'children', '0:$spawn:function-1:906c7ccf94415b00#1', 0, 1, NULL, 1794973976284414, NULL, NULL, NULL);
INSERT INTO holdfast.waits VALUES ('01a1ecc9-46ca-78f7-b36c-2a629c03f40a', 0, '$event:go child-child#1', 'event', '[null,"go child-child"]', 0, NULL, NULL, 1794973976294426, NULL, NULL, NULL);
INSERT INTO holdfast.waits VALUES ('01a1ecc9-4567-7978-849a-1ff6c0b1b2ea', 0, '$sleep#1', 'sleep', NULL, 0, NULL, 1794973996301795, 1794973976301795, NULL, NULL, NULL);
INSERT INTO holdfast.workers VALUES ('host:25662:b984d8605df9', 'host:25662', 1794973978224854, 1794973976224890, 1, '{"queues": null, "concurrency": 30, "tasks": ["function", "held", "job", "machine", "plain", "undoing", "who"], "process_slots": 2, "process_tasks": []}', NULL, NULL);
SELECT pg_catalog.setval('holdfast.lanes_id_seq', 8, true);
SELECT pg_catalog.setval('holdfast.polls_id_seq', 1, false);
SELECT pg_catalog.setval('holdfast.runs_seq_seq', 21, true);
SELECT pg_catalog.setval('holdfast.slots_id_seq', 1, false);
ALTER TABLE ONLY holdfast.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (run, generation, n);
ALTER TABLE ONLY holdfast.chunks
    ADD CONSTRAINT chunks_pkey PRIMARY KEY (run, n);
ALTER TABLE ONLY holdfast.edges
    ADD CONSTRAINT edges_pkey PRIMARY KEY (needs, node);
ALTER TABLE ONLY holdfast.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (target);
ALTER TABLE ONLY holdfast.history
    ADD CONSTRAINT history_pkey PRIMARY KEY (run, n);
ALTER TABLE ONLY holdfast.keys
    ADD CONSTRAINT keys_pkey PRIMARY KEY (scope, key);
ALTER TABLE ONLY holdfast.lanes
    ADD CONSTRAINT lanes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY holdfast.lanes
    ADD CONSTRAINT lanes_queue_task_key UNIQUE (queue, task);
ALTER TABLE ONLY holdfast.limit_settings
    ADD CONSTRAINT limit_settings_pkey PRIMARY KEY (name);
ALTER TABLE ONLY holdfast.limits
    ADD CONSTRAINT limits_pkey PRIMARY KEY (place);
ALTER TABLE ONLY holdfast.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (run, n);
ALTER TABLE ONLY holdfast.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);
ALTER TABLE ONLY holdfast.polls
    ADD CONSTRAINT polls_pkey PRIMARY KEY (id);
ALTER TABLE ONLY holdfast.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (name);
ALTER TABLE ONLY holdfast.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY holdfast.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);
ALTER TABLE ONLY holdfast.slots
    ADD CONSTRAINT slots_pkey PRIMARY KEY (id);
ALTER TABLE ONLY holdfast.tallies
    ADD CONSTRAINT tallies_pkey PRIMARY KEY (span, at, lane, state);
ALTER TABLE ONLY holdfast.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY holdfast.waits
    ADD CONSTRAINT waits_pkey PRIMARY KEY (run, generation, key);
ALTER TABLE ONLY holdfast.watchers
    ADD CONSTRAINT watchers_pkey PRIMARY KEY (id);
ALTER TABLE ONLY holdfast.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (session);
CREATE INDEX holdfast_events_age ON holdfast.events USING btree (touched_at);
CREATE INDEX holdfast_events_more ON holdfast.events USING btree (target) WHERE (more = 1);
CREATE INDEX holdfast_limits_look ON holdfast.limits USING btree (look_at) WHERE (look_at IS NOT NULL);
CREATE INDEX holdfast_limits_name ON holdfast.limits USING btree (name);
CREATE INDEX holdfast_messages_new ON holdfast.messages USING btree (run, topic, n) WHERE (taken_by IS NULL);
CREATE INDEX holdfast_polls_last ON holdfast.polls USING btree (trigger_name, id);
CREATE INDEX holdfast_runs_asleep ON holdfast.runs USING btree (lane) WHERE (state = ANY (ARRAY['waiting'::text, 'blocked'::text]));
CREATE INDEX holdfast_runs_blocked ON holdfast.runs USING btree (parent, spawn_key, place) WHERE ((state = 'blocked'::text) AND (place IS NOT NULL));
CREATE INDEX holdfast_runs_children ON holdfast.runs USING btree (parent, spawn_key, place) WHERE (parent IS NOT NULL);
CREATE INDEX holdfast_runs_deadline ON holdfast.runs USING btree (deadline) WHERE ((deadline IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX holdfast_runs_due ON holdfast.runs USING btree (due_at) WHERE (state = 'scheduled'::text);
CREATE INDEX holdfast_runs_ended ON holdfast.runs USING btree (lane, id) WHERE (COALESCE(finished_at, (0)::bigint) > 0);
CREATE INDEX holdfast_runs_expiry ON holdfast.runs USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX holdfast_runs_finished ON holdfast.runs USING btree (finished_at) WHERE (finished_at > 0);
CREATE INDEX holdfast_runs_held ON holdfast.runs USING btree (held) WHERE (held IS NOT NULL);
CREATE INDEX holdfast_runs_lingering ON holdfast.runs USING btree (unique_name) WHERE ((unique_name IS NOT NULL) AND (finished_at IS NOT NULL) AND (session IS NOT NULL));
CREATE UNIQUE INDEX holdfast_runs_nodes ON holdfast.runs USING btree (parent, node) WHERE (node IS NOT NULL);
CREATE INDEX holdfast_runs_owned ON holdfast.runs USING btree (session) WHERE (session IS NOT NULL);
CREATE INDEX holdfast_runs_parked ON holdfast.runs USING btree (parked_on, priority DESC, turn, seq) WHERE (held = 'full'::text);
CREATE INDEX holdfast_runs_ready ON holdfast.runs USING btree (lane, priority DESC, turn, seq) WHERE ((state = 'ready'::text) AND (held IS NULL));
CREATE INDEX holdfast_runs_tenant ON holdfast.runs USING btree (tenant, id) WHERE ((COALESCE(finished_at, (0)::bigint) > 0) AND (tenant IS NOT NULL));
CREATE INDEX holdfast_runs_tree ON holdfast.runs USING btree (root) WHERE (root IS NOT NULL);
CREATE INDEX holdfast_runs_turns ON holdfast.runs USING btree (lane, COALESCE(tenant, ''::text), turn) WHERE ((state = 'ready'::text) AND (turn > 0));
CREATE UNIQUE INDEX holdfast_runs_unique ON holdfast.runs USING btree (unique_name) WHERE ((unique_name IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX holdfast_runs_unwell ON holdfast.runs USING btree (state, id) WHERE ((COALESCE(finished_at, (0)::bigint) > 0) AND (state <> 'done'::text));
CREATE INDEX holdfast_schedules_next ON holdfast.schedules USING btree (kind, next_at) WHERE ((paused = 0) AND (orphaned = 0));
CREATE INDEX holdfast_slots_last ON holdfast.slots USING btree (schedule, id);
CREATE UNIQUE INDEX holdfast_slots_once ON holdfast.slots USING btree (schedule, slot) WHERE (asked = 0);
CREATE INDEX holdfast_waits_due ON holdfast.waits USING btree (due_at) WHERE ((outcome IS NULL) AND (due_at IS NOT NULL));
CREATE INDEX holdfast_waits_event ON holdfast.waits USING btree (target) WHERE ((outcome IS NULL) AND (kind = 'event'::text));
