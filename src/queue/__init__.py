"""Queues: a large circular queue, a sharded work queue, a local paged queue and its outbox."""
