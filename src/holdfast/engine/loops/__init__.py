"""The background loops of a worker, each in its own thread."""
