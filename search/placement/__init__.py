"""Where modules live: proposals of placements, judged by a simulator's seconds and the devices'
memory. Imports designs and facts of the domain; no tuning uses it unless it is asked to.
"""
