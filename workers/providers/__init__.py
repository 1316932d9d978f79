"""Adapters to model servers: `table` lists them, each has a file of its own."""
