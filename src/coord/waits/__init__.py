"""Waits: the reads of all waits of a process, made together (docs/protocols P19)."""
