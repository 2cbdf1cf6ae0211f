"""Files of other systems: AutoDist's strategies, resource specifications and graphs; ONNX; traces.

Everything here reads untrusted bytes: nothing in them is executed, and sizes, depths and counts
are bounded. Imports documents only.
"""
