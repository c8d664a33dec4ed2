"""Processes that may not connect to anything: each attempt fails, and is written down."""

from pathlib import Path


DISCARD = 9  # a port at which nobody listens
_SITE = """
import socket

def allowed(address):
    here = isinstance(address, (str, bytes)) or address[0] in {here!r}
    return here and address[1:2] != ({port},)

def refuse(address):
    with open({attempts!r}, "a") as file:
        file.write(repr(address) + chr(10))
    raise OSError(f"the test allows no connection: {{address}}")

connect, look_up = socket.socket.connect, socket.getaddrinfo

def guarded_connect(self, address, *rest):
    return connect(self, address, *rest) if allowed(address) else refuse(address)

def guarded_look_up(host, *rest, **named):
    return look_up(host, *rest, **named) if host is None or allowed((host,)) else refuse((host, *rest))

socket.socket.connect = socket.socket.connect_ex = guarded_connect
socket.getaddrinfo = guarded_look_up
"""


def guard(folder: Path) -> None:
    """Make `folder` a place that, on PYTHONPATH, lets processes connect to this machine alone, but for `DISCARD`."""
    here = ("127.0.0.1", "localhost", "::1", b"127.0.0.1", b"localhost")
    text = _SITE.format(here=here, port=DISCARD, attempts=str(folder / "attempts"))
    (folder / "sitecustomize.py").write_text(text)


def attempts(folder: Path) -> list[str]:
    """What processes tried to connect to."""
    file = folder / "attempts"
    return file.read_text().splitlines() if file.exists() else []
