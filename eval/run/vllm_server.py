"""vLLM beside a worker: one server for a checkpoint, which ends with the block."""

import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eval.run.processes import child
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.deviations import stock
from modeling_aligned_llava.inference.served import SERVER_OPTIONS, Server
from modeling_aligned_llava.loading.checkpoint import read_config


@contextmanager
def vllm_server(
    engine: str,
    checkpoint: str,
    dtype: str,
    batch_size: int,
    shared_prefix: bool = True,
    trust_remote_code: bool = False,
) -> Iterator[Server]:
    """Serve a checkpoint; yields the server when it answers.

    Raises:
        UserError: vLLM ended before it answered.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
    program, *options = shlex.split(engine)
    options += ["--dtype", dtype, "--max-num-seqs", str(batch_size)]
    options += ["--enable-prefix-caching" if shared_prefix else "--no-enable-prefix-caching"]
    options += ["--trust-remote-code"] if trust_remote_code else []
    if changed := stock(read_config(Path(checkpoint)).get("model_type", "")).processor:
        options += ["--mm-processor-kwargs", json.dumps(changed)]
    command = [program, "serve", checkpoint, *options, *SERVER_OPTIONS, "--host", host, "--port", str(port)]
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
    with child(command, stdin=subprocess.DEVNULL, env=environment) as process:
        server = Server(f"http://{host}:{port}", shlex.join(options))
        try:
            while not server.is_ready():
                if process.poll() is not None:
                    raise UserError(f"vLLM ended before it answered (exit status {process.returncode}); see its log")
                time.sleep(0.5)
            yield server
        finally:
            process.terminate()
