"""The emulated cluster: network namespaces, shaped links, and what they really carry.

May import what all of trials share."""
