"""Publishing: now, later, by key, one at a time or gathered by a publisher (docs/protocols P5, P15, P16)."""
