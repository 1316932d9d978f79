"""The project's own tools: what `check`, `test`, `demo` and `bench` run. Not part of the wheel."""
