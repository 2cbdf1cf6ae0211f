"""What is measured on a GPU; `scripts/check_gpu` runs it all."""
