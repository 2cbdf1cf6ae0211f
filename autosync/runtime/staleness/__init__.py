"""Plans that may lag: gradients are applied some iterations later, and travel meanwhile. Knows the
layout and transport; shares nothing with the execution of exact plans."""
