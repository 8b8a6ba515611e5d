"""Publish the windows to a topic: each exactly once, for readers under read_committed."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from kraftpy.pipeline import steps

spark = SparkSession.active()

dp.create_sink(
    name="counts_topic",
    format="kraftpy",
    options={
        "kafka.bootstrap.servers": str(spark.conf.get("spark.kraftpy.bootstrap.servers")),
        "topic": str(spark.conf.get("spark.kraftpy.target.topic")),
        "delivery": "exactly_once",
        **steps.security(spark),
    },
)


@dp.append_flow(target="counts_topic")
def publish() -> DataFrame:
    """Turn each window into a record with the airport as its key."""
    return steps.as_records(spark.readStream.table("counts"), key="origin")
