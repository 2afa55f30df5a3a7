-- How an idle worker is woken, so that new work wakes one worker instead of all.

-- wake_channel: the channel on which the worker listens; null: an earlier release, which listens on the channel of the schema; empty: none,
-- because a pooler is in between. wake_group: workers with the same value run the same tasks of the same queues.
alter table {schema}workers add column wake_channel text;
alter table {schema}workers add column wake_group text;
