"""The commands of `autosync`, a file each."""
