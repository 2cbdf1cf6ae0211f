class Killed(Exception):
    """Stands for the process dying in the middle of a trial."""
