"""Parshall measures the packet path of Linux hosts, with the loss and the cost of measuring."""
