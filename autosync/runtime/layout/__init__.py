"""Where gradients lie: the records of a plan on one rank, their buffers, and who copies what."""
