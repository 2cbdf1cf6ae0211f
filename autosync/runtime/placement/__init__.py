"""Modules that live on ranks of their own: their samples are dealt to these ranks and back, within
the script's own forward and backward pass. Knows the plan, transport and hooks; the execution of a
plan knows nothing of it.
"""
