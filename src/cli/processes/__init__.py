"""`latchwork worker --processes N`: a parent that starts workers as children, watches over them, and ends them."""
