-- The turn of a run is the time at which it became ready, minus 10^18 (store/turns.py), where it was 0. Unfinished runs get the time of
-- their creation, so that they come before new ones. Rows that someone has locked just now are left out rather than waited for: their next
-- change of state sets it.

update {schema}runs set turn = created_at - 1000000000000000000
where id in (select r.id from {schema}runs r where r.finished_at is null and r.turn = 0 {lock_free})
