"""Effects that happen once, however often the code runs that makes them (docs/protocols P23)."""
