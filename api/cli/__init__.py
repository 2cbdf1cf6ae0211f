"""The command line: what is typed, what is printed, and a file for each command (`commands/`).

May import every other package; commands import what they need when they run.
"""
