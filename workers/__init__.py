"""What runs inside a worker process, one process for each agent. Imports ``protocol`` only."""
