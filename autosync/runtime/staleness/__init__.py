"""Plans that may lag: gradients are applied some iterations later, and travel meanwhile. Knows
hooks, the layout and transport; shares with exact plans how a failure ends all waiting."""
