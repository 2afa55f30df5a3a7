-- Indexes for events with many waiters and runs with many waits.

-- The waiters of an event in the order in which they are woken. It serves all that the index by target did.
create index holdfast_waits_awaited on {schema}waits (target, since) where outcome is null and kind = 'event';
drop index {in_schema}holdfast_waits_event;

-- The resolved waits of a run, however many are open.
create index holdfast_waits_resolved on {schema}waits (run, generation) where outcome is not null;
