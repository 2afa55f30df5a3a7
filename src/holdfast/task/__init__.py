"""How authors write: tasks, their options, signatures and registration."""
