"""Plans that may lag. Pipelined: gradients are applied some iterations later, and travel meanwhile.
Clocks: parameter servers add updates as they arrive, and a rank reads values of a bounded age.
Knows hooks, the layout and transport; shares with exact plans how a failure ends all waiting."""
