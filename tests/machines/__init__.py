"""State machines that do the same to a primitive over two stores, and to a plain model of it: one file a primitive."""
