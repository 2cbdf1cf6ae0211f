"""Random strategies: under AutoSync's two constraints, drawn by compiled kernels, and of torch's
`fully_shard`. Imports the space and facts of the domain, not the designs."""
