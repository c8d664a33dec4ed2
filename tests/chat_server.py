"""A server with OpenAI's chat API in a process of its own, and a question about images to it."""

import base64
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager


@contextmanager
def serving(command, log, environment=None, within=120):
    """The address at which `command` serves, well after so many seconds at most; it is told a host and a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as file:
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)  # noqa: S603
    try:
        deadline = time.monotonic() + within
        while True:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def ask(address, model, images, text, **settings):
    """The server's choice for a question about PNG files."""
    content = []
    for image in images:
        url = "data:image/png;base64," + base64.b64encode(image.read_bytes()).decode()
        content.append({"type": "image_url", "image_url": {"url": url}})
    content.append({"type": "text", "text": text})
    asked = {"model": str(model), "messages": [{"role": "user", "content": content}], "temperature": 0.0, **settings}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(asked).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
        (choice,) = json.load(answer)["choices"]
    return choice
