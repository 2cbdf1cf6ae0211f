"""What watches the script's objects: gradients, forward passes, the optimizer. Calls the engine;
nothing below knows of hooks."""
