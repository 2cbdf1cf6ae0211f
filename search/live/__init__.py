"""`autosync.tune`: the tuning loop inside a running training job. Imports the loop and below."""
