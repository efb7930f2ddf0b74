"""Lets Spark 4 find ``format("nats")`` by itself: it looks for top-level modules ``pyspark_*`` with a DefaultSource.

It is outside the package since Spark imports all such modules when a session first uses a data source in Python.
"""

from natsproto.spark._source import NatsDataSource as DefaultSource

__all__ = ["DefaultSource"]
