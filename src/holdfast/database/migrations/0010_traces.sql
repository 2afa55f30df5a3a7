-- Events keep the W3C trace context of whoever emitted them, as JSON, so that those who waited for them can link to it.

alter table {schema}events add column trace text;
