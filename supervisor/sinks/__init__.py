"""Where the events of a run go: `table` has one for each output format."""
