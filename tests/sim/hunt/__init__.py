"""Hunts on real servers: every primitive is used at once while nodes go away and come back (F15)."""
