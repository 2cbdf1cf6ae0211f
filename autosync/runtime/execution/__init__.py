"""Runs a plan, iteration by iteration: the engine, the queues of messages, and the handling of
completed messages. Uses updates, the layout and transport; hooks call it."""
