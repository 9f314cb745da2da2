"""The exceptions of Parshall: their text is one line that names the thing, the value, the remedy."""


class ParshallError(Exception):
    """Something could not be done; the command line shows the text and exits with status 1."""


class UsageError(ParshallError):
    """The request itself is wrong; the command line shows the text and exits with status 2."""
