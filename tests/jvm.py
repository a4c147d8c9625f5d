"""How the JVMs of the tests are started."""

from __future__ import annotations

from typing import Final

#: Thousands of short plans, each almost new: the JVM's second compiler takes a quarter of the time and never earns it back. Without it the
#: JVM reserves a fifth of its code cache, and compiles nothing any more once that is full.
SETTINGS: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m"}
