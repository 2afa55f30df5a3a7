-- Collection of lanes without runs.

-- unused_since: when housekeeping found no run in the lane; null while it has runs. A process that enqueues into it again sets null.
alter table {schema}lanes add column unused_since bigint;

-- Lanes that were deleted because they had been unused. Statistics refer to them, and so may a late run, which housekeeping moves.
create table {schema}retired_lanes (
    id bigint primary key,
    queue text not null,
    task text not null,
    retired_at bigint not null
);

create index holdfast_retired_lanes_age on {schema}retired_lanes (retired_at);
