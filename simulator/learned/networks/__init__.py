"""The torch modules, their loss and their training. They know tensors, not domains or features."""
