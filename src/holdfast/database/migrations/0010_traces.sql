-- Events store the W3C trace context of their emitter as JSON, so that waiting runs can link to it.

alter table {schema}events add column trace text;
