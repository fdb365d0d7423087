"""Two versions over one store, and the layouts of what is stored."""
