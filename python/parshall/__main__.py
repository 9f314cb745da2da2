"""``python -m parshall`` is ``parshall``."""

from parshall.cli.main import main

main()
