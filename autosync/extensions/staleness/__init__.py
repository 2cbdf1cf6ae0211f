"""Bounded staleness (SSP). Pipelined: gradients are applied some iterations later. Clocked:
parameter servers add updates as they arrive, and a rank reads values of a bounded age."""
