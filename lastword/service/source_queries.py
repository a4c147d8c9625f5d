"""What a service does with Spark for its sources; imported where there is one, as PySpark is imported with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword import clock
from lastword.streaming.append.kafka_topics import hang_up
from lastword.streaming.append.query import stop_append_query
from lastword.streaming.append.source_settings import trigger_of
from lastword.streaming.append.sources import matching_sources, open_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword.spark_topic import SparkTopic
    from lastword.streaming.append.source_settings import FileSource, KafkaSource, RateSource

__all__ = ["hang_up", "matching_sources", "start_query", "stop_append_query"]


def start_query(spark: SparkSession, topic: SparkTopic, source: FileSource | KafkaSource | RateSource) -> StreamingQuery:
    """Open a source and start the query that appends its rows to a topic."""
    opened = open_source(spark, source, topic.log, now_ms=clock.now_ms())
    return topic.append_stream(
        opened.rows,
        name=source.name,
        trigger=trigger_of(source.trigger),
        on_invalid=source.on_invalid,
        mirror=opened.mirror,
        upstream=opened.upstream,
        envelope=opened.envelope,
        events=opened.events,
        decoder=opened.decoder,
        sequence_as="text",  # the source has said what its texts are
    )
