"""The emulated cluster: network namespaces, shaped links, and what they really carry."""
