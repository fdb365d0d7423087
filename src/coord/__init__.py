"""Waiting for each other: latches, fenced locks, leader election."""
