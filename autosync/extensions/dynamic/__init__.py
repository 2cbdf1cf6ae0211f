"""Dynamic models (Cavs): a vertex function evaluated over input graphs, frontier by frontier."""
