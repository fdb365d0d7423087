"""The local paged queue: layout, recovery, crash states, kills."""
