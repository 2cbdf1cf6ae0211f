"""Bounded staleness (SSP): parameter servers add updates as they arrive, and a rank reads values of
a bounded age."""
