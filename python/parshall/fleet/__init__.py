"""The logs of many hosts in one store: sent there file by file, read from there as one."""

from parshall.fleet.reading import Fleet as Fleet
