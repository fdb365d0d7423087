"""What goes wrong: fault kinds, plans, and the store that suffers them."""
