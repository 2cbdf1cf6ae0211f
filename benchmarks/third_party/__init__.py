"""Models that others wrote, at small configurations: what the table of third-party models tries."""
