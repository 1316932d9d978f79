"""What the tools may touch of the machine, and how they are held to that: paths, files, processes."""
