"""The session store: one folder with one SQLite file for each session."""
