"""What works off tunings: the queue, its workers, and the stores they write to."""
