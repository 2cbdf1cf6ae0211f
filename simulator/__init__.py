"""Predicts seconds an iteration without running; may import all of autosync but search and api.

Rooms, from the top, each of which may import those below it: `evaluation`; `learned`; `fitting` and
`explanation`; `memory_check`; `analytic` and `limit`; `timeline`; `peak_memory`; `cost`;
`numba_compiler`; `activation_memory`; `saved_tensors`.
"""
