-- The index of children of maps that are kept back isn't for nodes of graphs: those are released by their counters, and each entry is
-- written with the node and taken out with its release.

drop index {in_schema}holdfast_runs_blocked;
create index holdfast_runs_blocked on {schema}runs (parent, spawn_key, place) where state = 'blocked' and place is not null;
