"""The tuning loop: sample, rank, select, run, store, refit; then confirm. Imports designs and
sampler, never a collection or a live tuning."""
