"""The search for the fastest strategy: collect, live > loop > edits > designs,
sampler > space.

May import simulator and autosync, never api. `space` is its contract: what is searched."""
