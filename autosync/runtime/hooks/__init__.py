"""What watches the script's model: gradients, forward reads, buffers."""
