"""The REST API: a table of operations, from which the routes and the OpenAPI document are built."""
