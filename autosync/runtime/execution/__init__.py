"""Runs a plan, iteration by iteration: the engine, the queues of messages, and what follows from a
completed message. Knows updates, the layout and transport; hooks call it."""
