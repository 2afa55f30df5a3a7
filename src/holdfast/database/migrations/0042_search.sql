-- Search for runs by tag and by metadata value.

-- Only runs with tags are in it. The columns are expressions, so that no planner with old statistics confuses it with the primary key. It has the start of their list of tags, because an entry of PostgreSQL is limited to 2.7 kB.
create index holdfast_runs_tags on {schema}runs ((cast(substr(tags, 1, 200) as text)), (cast(coalesce(id, id) as {uuid})))
    where tags is not null;

-- Values of any name. Its columns are worded as in no other index of the table.
create index holdfast_metadata_contents on {schema}metadata ((cast(substr(value, 1, 100) as text)), (cast(coalesce(run, run, run) as {uuid})));
