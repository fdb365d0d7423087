"""Functions as tasks: their arguments are the payload of a message (docs/guide/tasks.md, docs/protocols/tasks.md)."""
