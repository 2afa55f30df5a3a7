-- Exclude graph nodes from the index of children that a map holds back: counters release nodes, and each index entry would be written
-- with the node and removed with its release.

drop index {in_schema}holdfast_runs_blocked;
create index holdfast_runs_blocked on {schema}runs (parent, spawn_key, place) where state = 'blocked' and place is not null;
