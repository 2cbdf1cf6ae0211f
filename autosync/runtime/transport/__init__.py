"""How messages travel: process groups, the operations of each backend, and their queues."""
