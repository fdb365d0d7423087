"""A deterministic simulator: real primitives, a simulated world, and one integer that fixes everything."""
