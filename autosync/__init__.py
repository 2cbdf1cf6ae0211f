"""AutoSync: the fastest exact gradient synchronization for a data-parallel PyTorch job."""
