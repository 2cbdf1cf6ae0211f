"""Predicts seconds an iteration without running; may import all of autosync but search and api.

From the top: datasets (`runtime_dataset` and what is written from it); `learned`; `fitting` and
`explanation`; `analytic`, `limit` and `message_digests`; `timeline`; `memory`; `cost`;
`numba_compiler`; `backends`; `topology`. Each may import those below it.
"""
