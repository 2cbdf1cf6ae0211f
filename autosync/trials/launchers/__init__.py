"""Where ranks run: one launcher a file, each implementing `contract.Launcher`."""
