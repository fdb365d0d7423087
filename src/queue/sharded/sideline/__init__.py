"""The verbs of an operator for parked messages: passes over all of them, and one at a time (docs/protocols P5)."""
