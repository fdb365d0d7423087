"""Latchwork: distributed coordination primitives for Python and Spark on Aerospike."""
