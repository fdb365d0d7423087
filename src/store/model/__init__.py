"""The values that a store understands: records, expressions, operations, prepared updates."""
