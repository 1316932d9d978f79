"""corral as an agent of the Agent Client Protocol: ``corral acp``."""
