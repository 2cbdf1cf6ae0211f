"""Where gradients lie: the records of a plan on one rank, their buffers and their copies, and the
order in which messages are issued. Knows the plan, streams and the types of transport."""
