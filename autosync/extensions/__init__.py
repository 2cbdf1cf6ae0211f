"""Systems of the papers beside the core: staleness, offloading, placement, dynamic models."""
