"""What was run: counts, tables and floors."""
