"""Commands beside the run that need no run: settings, stored sessions, trust."""
