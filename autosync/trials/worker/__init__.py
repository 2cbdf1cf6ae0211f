"""What runs in a worker process: one rank, its workload, and its measurements."""
