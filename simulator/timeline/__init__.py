"""Plays compiled plans against compute and the network, event by event. May import the costs."""
