"""Found by Spark through its name: a module `pyspark_…` with a `DefaultSource` needs no registration."""

from spark_offload.data_source import TidelogSource as DefaultSource

__all__ = ["DefaultSource"]
