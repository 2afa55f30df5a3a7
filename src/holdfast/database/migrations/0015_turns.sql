-- The turn of a run is the time at which it became ready, minus 10^18; it used to be 0. Unfinished runs get their creation time, so that they
-- come before new ones. Rows that are locked now are skipped instead of waited for: their next state change sets the turn.

update {schema}runs set turn = created_at - 1000000000000000000
where id in (select r.id from {schema}runs r where r.finished_at is null and r.turn = 0 {lock_skip_locked})
