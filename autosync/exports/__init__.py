"""A strategy as settings of torch's DDP and FSDP2, DeepSpeed and Horovod, or a plain no.

Pure functions of strategy and domain, a file for each framework; none of these is imported.
`settings` is their contract.
"""
