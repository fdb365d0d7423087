"""The sharded work queue: at least once, with a sideline, a shovel and a sweeper."""
