"""The command line: a thin layer over the Python API. One module a command; none computes."""
