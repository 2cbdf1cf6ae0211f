"""What messages cost on a cluster: traffic, links, startups, and the published constants.

May import the compiled plan compiler, and nothing of the timeline.
"""
