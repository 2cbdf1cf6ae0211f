"""How reduced gradients become new values: the user's own optimizer, whole or in parts. Knows the
layout and compression."""
