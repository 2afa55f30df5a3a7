-- Schedules that are created, changed and deleted at run time, next to those that code declares.

-- app: empty for a schedule that was created at run time. orphaned_at: since when no code declares it. former: digests of declarations that
-- were replaced, as a list: an older release that still runs doesn't bring them back. buffered: the slot whose run is created once the
-- schedule's other runs have ended. actions: the last changes by people, as a list.
alter table {schema}schedules add column orphaned_at bigint;
alter table {schema}schedules add column former text;
alter table {schema}schedules add column buffered bigint;
alter table {schema}schedules add column actions text;

create index holdfast_schedules_app on {schema}schedules (app);
create index holdfast_schedules_buffered on {schema}schedules (name) where buffered is not null;
