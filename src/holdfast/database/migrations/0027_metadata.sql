-- What applications attach to runs, to find them by: the names and values of `metadata=` and `ctx.annotate`.

-- value: canonical JSON text. A table of its own, so that runs without metadata cost nothing and a claim or an end of a run doesn't touch the
-- index.
-- The index has only the start of a value, because an entry of PostgreSQL is limited to 2.7 kB. Its columns are expressions, so that no planner
-- with old statistics confuses it with the primary key.
create table {schema}metadata (
    run {uuid} not null,
    name text not null,
    value text not null,
    primary key (run, name)
) {clustered};

create index holdfast_metadata_values on {schema}metadata ((cast(name || ' ' || substr(value, 1, 100) as text)), (cast(coalesce(run, run) as {uuid})));
