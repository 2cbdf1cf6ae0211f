"""What runs in a worker process: the commands it takes, a rank, the replay and its kernels.

May import what all of trials share."""
