"""What a probe measures on a pool's workers: single messages, and kernels.

May import the pool and the workers; tells samples, and fits nothing.
"""
