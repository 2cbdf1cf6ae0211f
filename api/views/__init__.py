"""What the database holds, as answers: tunings, trials, timelines, tables. Reads and never writes.

May import engine and db; knows nothing of HTTP or the command line.
"""
