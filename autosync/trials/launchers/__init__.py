"""Opens pools on some kind of machine: one launcher a file, each a `contract.Launcher`.

May import every other package of trials but `live`."""
