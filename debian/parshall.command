#!/usr/lib/parshall/bin/python3 -I
from parshall.cli.main import main

main()
