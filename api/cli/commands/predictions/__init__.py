"""Commands that predict for clusters of any size: what collectives take, and what a job reaches."""
