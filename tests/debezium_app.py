"""A process that runs Debezium's engine and writes each event into a file: `python -m tests.debezium_app SETTINGS JARS EVENTS`.

SETTINGS is a JSON file with the connector's settings, JARS the class path, EVENTS the file that lines are added to: a JSON array of topic,
key, value and headers. A batch is in the file before the engine hears that it is done with, so that an event comes at least once, whenever
the process is killed. The engine is Java; py4j, which PySpark brings along, starts it, and its process ends with this one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, launch_gateway

from tests.jvms import jvm_options

_LOGGING: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")


class _Lines:
    """The engine's consumer: it writes batches into the file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802  the name that Debezium calls
        """Write a batch of events by one call, then tell the engine that they are done with."""
        events = list(records)
        lines = [json.dumps([one.destination(), one.key(), one.value(), _headers(one)]) + "\n" for one in events]
        os.write(self._file, "".join(lines).encode())
        for one in events:
            committer.markProcessed(one)
        committer.markBatchFinished()

    def supportsTombstoneEvents(self) -> bool:  # noqa: N802
        """Take tombstones as well."""
        return True

    class Java:
        """The interface, for py4j."""

        implements: Final = ["io.debezium.engine.DebeziumEngine$ChangeConsumer"]


def _headers(event: Any) -> list[tuple[str, str]]:
    return [(one.getKey(), one.getValue()) for one in event.headers()]


def main(settings: str, class_path: str, events: str) -> int:
    """Run the engine until it fails or this process is killed."""
    jar = next(Path(pyspark.__file__).parent.glob("jars/py4j-*.jar"))
    options = ["-Xmx256m", *jvm_options(Path("none")), *_LOGGING]
    port, token = launch_gateway(
        jarpath=str(jar),
        classpath=class_path,
        javaopts=options,
        die_on_exit=True,
        enable_auth=True,
        redirect_stdout=sys.stdout,
        redirect_stderr=sys.stderr,
        java_path=None,  # that of JAVA_HOME
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True),
        callback_server_parameters=CallbackServerParameters(port=0),
    )
    here = gateway.get_callback_server().get_listening_port()
    jvm: Any = gateway.jvm
    gateway.java_gateway_server.resetCallbackClient(jvm.java.net.InetAddress.getByName("127.0.0.1"), here)
    properties = jvm.java.util.Properties()
    for name, value in json.loads(Path(settings).read_text(encoding="utf-8")).items():
        properties.setProperty(name, value)
    form = jvm.java.lang.Class.forName("io.debezium.engine.format.Json")
    engine = jvm.io.debezium.engine.DebeziumEngine.create(form, form, form).using(properties).notifying(_Lines(events)).build()
    engine.run()
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
