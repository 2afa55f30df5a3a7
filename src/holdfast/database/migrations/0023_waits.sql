-- An index for runs with thousands of waits: a child that ends finds the wait of its parent, however many the parent has.

create index holdfast_waits_children on {schema}waits (run, target) where outcome is null and kind = 'children';
