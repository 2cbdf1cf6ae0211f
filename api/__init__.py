"""The service and the command line. Imports run one way: cli > http > views > engine > db."""
