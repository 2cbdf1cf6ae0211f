"""How bytes travel between ranks: process groups, and the operations of each backend. Knows the
plan and streams, not the records of a model."""
