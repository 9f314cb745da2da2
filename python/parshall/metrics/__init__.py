"""Metrics of a measurement that runs long: one collection, which Prometheus asks for and OTLP sends.

`collection` makes the metrics of an account, `server` serves them, `otlp` exports them.
"""
