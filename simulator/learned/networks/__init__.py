"""The torch modules, their loss and training, and the model around them; torch loads here alone."""
