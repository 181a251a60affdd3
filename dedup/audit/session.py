"""Get the Spark session of an audit; where it runs is for whoever starts it to say."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from dedup.errors import ConfigError

_WHAT_TO_INSTALL = (
    "Spark needs Java 17 or newer, and there is none: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or "
    "set JAVA_HOME"
)


_PARTITIONS_MIN = 8


def session(name: str = "dedup audit") -> SparkSession:
    """
    Return the session of this process, made if there is none.

    The master comes from spark-submit or spark-defaults.conf, and is all cores of this machine otherwise. Days and hours
    are those of UTC.

    Raises:
        ConfigError: there is no Java, or one that Spark does not start with.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not java_found():
        raise ConfigError(_WHAT_TO_INSTALL)
    try:
        # The commands show progress of their own.
        builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        java = os.environ.get("JAVA_HOME") or shutil.which("java")
        raise ConfigError(
            f"Spark does not start with the Java at {java}: it needs 17 or newer; what Java said is above"
        ) from error
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    suit_partitions(spark)
    # Let Spark filter the arrivals by a Bloom filter of the dropped ones, however large the log they come from.
    spark.conf.set("spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold", "1TB")
    return spark


def suit_partitions(spark: SparkSession) -> None:
    """
    Shuffle into as many parts as there are cores, and no fewer than 8, unless somebody has said otherwise.

    State is small, and Spark's default of 200 parts costs several times the work itself where it cannot be adapted at run
    time: in streams, and in what is cached.
    """
    name = "spark.sql.shuffle.partitions"
    if not spark.sparkContext.getConf().contains(name):
        spark.conf.set(name, str(max(_PARTITIONS_MIN, spark.sparkContext.defaultParallelism)))


def java_found() -> bool:
    """
    Tell whether Spark would find a Java: in JAVA_HOME, or else on the PATH.
    """
    home = os.environ.get("JAVA_HOME")
    return (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is not None
