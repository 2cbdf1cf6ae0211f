"""The tuning loop: sample, rank, select, run, store, refit; then confirm."""
