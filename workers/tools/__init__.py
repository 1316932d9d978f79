"""The tools an agent may call: `table` lists them, each has a file of its own."""
