"""Trials: strategies measured by real execution.

`contract` says what a trial, a pool and a launcher are; `trial_procedure` is the one way through a
trial, `session` a rank's part in it. Packages, each importing those after it: launchers, live >
pool, testbed > worker > the files here, which all share. Only the simulator, the search and the api
are above trials.
"""
