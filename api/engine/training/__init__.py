"""The versions of the simulator that a service trains: their queue, what they learn from, and the
process that trains one."""
