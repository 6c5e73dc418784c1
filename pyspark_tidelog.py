"""Found by Spark through its name: a module `pyspark_…` with a `DefaultSource` needs no registration.

Imported before a session is made, it also sees to it that Spark searches in the Python that runs here.
"""

from spark_offload.reading.data_source import TidelogSource as DefaultSource
from spark_offload.running.session import spark_session, use_this_python

__all__ = ["DefaultSource", "spark_session"]

use_this_python()
