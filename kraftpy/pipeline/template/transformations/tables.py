"""Bronze, silver and quarantine: Parquet tables below tables/."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from kraftpy.pipeline import steps

spark = SparkSession.active()

FIELDS = {"id": "string", "at": "timestamp", "place": "string", "amount": "double"}  # JSON field -> SQL type
REQUIRED = ("id", "at", "place")  # records that lack one of these go to quarantine


@dp.table
def bronze() -> DataFrame:
    """The records of the topic, unchanged."""
    servers = str(spark.conf.get("spark.kraftpy.bootstrap.servers"))
    topic = str(spark.conf.get("spark.kraftpy.source.topic"))
    return steps.bronze(spark, topic, bootstrap_servers=servers, commitGroupId="@name@", **steps.security(spark))


@dp.table
def silver() -> DataFrame:
    """Events."""
    return steps.good(spark.readStream.table("bronze"), fields=FIELDS, required=REQUIRED)


@dp.table
def quarantine() -> DataFrame:
    """Records that are not events, and why."""
    return steps.quarantined(spark.readStream.table("bronze"), fields=FIELDS, required=REQUIRED)
