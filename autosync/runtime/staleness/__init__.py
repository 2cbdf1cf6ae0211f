"""Plans that may lag. Pipelined: gradients are applied some iterations later, and travel meanwhile.
Clocks: parameter servers add updates as they arrive, and a rank reads values of a bounded age.
Knows the layout and transport; shares nothing with the execution of exact plans."""
