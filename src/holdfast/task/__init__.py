"""How users write tasks: decorators, signatures, options, contexts, graphs and state machines."""
