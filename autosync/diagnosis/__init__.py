"""Where the seconds of a data-parallel iteration go, from what ranks recorded of their own steps.

The files of this folder read traces and compute; they run in training processes and load no
simulator. `search.live.diagnosis` records a running job and adds what is attainable.
"""
