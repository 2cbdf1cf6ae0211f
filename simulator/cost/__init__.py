"""What messages cost on a cluster: links, startups, and constants fitted to measurements."""
