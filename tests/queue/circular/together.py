"""Several requests in one hold of the queue's lock, without threads."""

from __future__ import annotations

from latchwork.queue.circular.group_commit import Ticket


def in_one_hold(queue, requests):
    """Do the requests as the thread does that leads; raises what the hold raises."""
    tickets = [Ticket(request) for request in requests]
    queue._work.line.waiting.extend(tickets)
    queue._work._run(tickets[0])
