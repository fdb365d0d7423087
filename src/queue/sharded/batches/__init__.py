"""Batches that end: messages that are counted by name as they are done, and a follow-up after the last (P18)."""
