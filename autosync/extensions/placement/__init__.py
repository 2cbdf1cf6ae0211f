"""Placement by module (HeteroG): modules that live on ranks of their own; their samples are dealt
to these ranks and back within the script's own forward and backward pass."""
