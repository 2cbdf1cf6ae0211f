"""The tuning loop: propose, rank, select, run, store, refit; then confirm. Imports designs,
sampler and edits, never a collection or a live tuning."""
