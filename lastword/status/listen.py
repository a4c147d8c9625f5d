"""The address that the HTTP server listens on: `HOST:PORT`."""

from __future__ import annotations

from typing import Final

_LAST_PORT: Final = 65_535


def parse_listen(listen: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[V6]:PORT"; raise `ValueError` with the allowed form."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > _LAST_PORT:
        message = f'allowed is HOST:PORT with a port of 0 (any) to {_LAST_PORT}, such as 127.0.0.1:9464, or "" for none'
        raise ValueError(message)
    return host, int(port)
