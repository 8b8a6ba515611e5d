"""Read and write Kafka topics with PySpark. Imports the client only.

Spark finds the format `kraftpy` by itself if it runs the Python that has this package; `session` sees to that, and
`register` if there is a session. `configure` makes the one setting that has to precede the session. `watch` tells what
the streams of a session do, `observe` has Spark count their bytes and times.
"""

from kraftpy.spark.starting import configure, register, session
from kraftpy.spark.watching import Watched, observe, watch

__all__ = ["Watched", "configure", "observe", "register", "session", "watch"]
