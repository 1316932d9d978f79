"""The process a person starts: it spawns the workers, tags and accounts what they say, and writes the stream."""
