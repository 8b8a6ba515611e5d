"""Bronze, silver and quarantine of the demo: which events are flights, and which are left out."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from kraftpy.pipeline import steps

spark = SparkSession.active()

FIELDS = {
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "dep_delay": "int",
}
REQUIRED = ("carrier", "flight", "tailnum", "origin", "dest")  # some of the real rows do not name the aircraft


@dp.table
def bronze() -> DataFrame:
    """The events of the topic, unchanged."""
    servers = str(spark.conf.get("spark.kraftpy.bootstrap.servers"))
    topic = str(spark.conf.get("spark.kraftpy.source.topic"))
    return steps.bronze(spark, topic, bootstrap_servers=servers, commitGroupId="@name@", **steps.security(spark))


@dp.table
def silver() -> DataFrame:
    """Flights with a known aircraft; `timestamp` is when they left, or should have left."""
    return steps.good(spark.readStream.table("bronze"), fields=FIELDS, required=REQUIRED)


@dp.table
def quarantine() -> DataFrame:
    """The other events, and why they are here."""
    return steps.quarantined(spark.readStream.table("bronze"), fields=FIELDS, required=REQUIRED)
