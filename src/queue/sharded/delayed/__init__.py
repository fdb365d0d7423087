"""Delayed messages and schedules (docs/protocols P14, P16)."""
