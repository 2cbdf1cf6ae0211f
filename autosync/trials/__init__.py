"""Trials: strategies measured by real execution.

`contract` says what a trial, a pool and a launcher are; `trial_procedure` is the one way through a
trial. The rooms, each importing those after it: launchers, live > probe > pool, testbed > worker >
the files here, which all share. Above trials may only be the simulator, the search and the api.
"""
