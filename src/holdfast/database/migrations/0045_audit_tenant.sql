-- Which tenant an entry of the audit log concerns, so that its operators can read it.

-- Null: none, or several.
alter table {schema}audit add column tenant text;
