"""Models whose structure depends on the input (trees, sequences of any length): a vertex function,
evaluated over input graphs frontier by frontier, as Cavs does. Knows torch and errors only; nothing
of autosync imports this room."""
