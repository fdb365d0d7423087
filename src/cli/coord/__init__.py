"""The commands of latches, locks, elections and the other coordination primitives."""
