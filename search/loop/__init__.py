"""The tuning loop: propose, rank, select, run, store, refit; then confirm. Imports designs,
sampler and improvement, never a collection or a live tuning."""
