"""`transformers serve` answers about an image from a saved folder, with the folder's own code."""

import base64
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import torch
from transformers import AutoProcessor

from modeling_aligned_llava import align, load_aligned
from tests.modeling_aligned_llava.loaded import load
from tests.modeling_aligned_llava.tiny_families import random_pair


pytestmark = pytest.mark.slow

TOKENS = 12


def norm_of(model):
    """The parameters of the norm."""
    return [
        value for name, value in model.named_parameters() if "projector.norm." in name or "alignment_norm." in name
    ]


@pytest.fixture(scope="module")
def folders(tiny_checkpoint, tmp_path_factory):
    """An aligned LLaVA, and an aligned model of another family, in which the norm decides what is said."""
    family, processor = random_pair("idefics3")
    pairs = {"llava": (load(folder := tiny_checkpoint("norm-gwc")), AutoProcessor.from_pretrained(folder))}
    pairs["idefics3"] = align(family), processor
    root = tmp_path_factory.mktemp("served")
    for name, (model, processor) in pairs.items():
        for parameter in norm_of(model):
            parameter.data += 3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        model.save_pretrained(root / name)
        processor.save_pretrained(root / name)
    return [root / name for name in pairs]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of `transformers serve --trust-remote-code`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "transformers.cli.transformers",
        "serve",
        "--trust-remote-code",
        "--device",
        "cpu",
    ]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--device", "cpu", "--port", str(port)], stdout=output, stderr=output)  # noqa: S603
    address, deadline = f"http://localhost:{port}", time.monotonic() + 120
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)  # noqa: S310
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()


def test_its_answer_is_that_of_transformers(folders, server, tiny_images):
    picture = base64.b64encode(tiny_images[0].read_bytes()).decode()
    for folder in folders:
        words = {"type": "text", "text": "What is this?"}
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
        asked = {"model": str(folder), "messages": [{"role": "user", "content": [image, words]}]}
        asked |= {"max_tokens": TOKENS, "temperature": 0.0}
        request = urllib.request.Request(  # noqa: S310
            f"{server}/v1/chat/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
            served = json.load(answer)["choices"][0]["message"]["content"]
        processor, model = AutoProcessor.from_pretrained(folder), load_aligned(folder).eval()
        question = [{"role": "user", "content": [{"type": "image", "path": str(tiny_images[0])}, words]}]
        inputs = processor.apply_chat_template(
            question, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        prompt = inputs["input_ids"].shape[1]

        def answer_of_model(model=model, processor=processor, inputs=inputs, prompt=prompt):
            tokens = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
            return processor.decode(tokens[0, prompt:], skip_special_tokens=True)

        assert served == answer_of_model(), folder
        for parameter in norm_of(model):
            torch.nn.init.zeros_(parameter)
        assert served != answer_of_model()  # the norm matters
