"""The contest: AutoSync beside its ablations, replayed, and beside tuned baselines, live."""
