"""What is decided of jobs on other machines, without IO."""
