"""Live control: a second shell looks into a run and acts on it, over a UNIX socket that every run listens on."""
