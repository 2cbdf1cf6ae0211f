"""Predicts the peak memory of every device: `peak_memory` of strategies, `memory_check` what fits.

`live_tensors` are the bytes of activations and gradients at each moment of an iteration,
`plan_memory` what messages and updates hold, `sharded_memory` what torch's `fully_shard` holds.
"""
