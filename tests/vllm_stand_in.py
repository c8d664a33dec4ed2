"""Plays `vllm serve FOLDER`: the part of its interface that we use, answered by transformers."""

import base64
import io
import json
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import torch
from jinja2 import Template
from PIL import Image
from transformers import AutoModelForCausalLM

from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.loading.checkpoint import sees_images
from tests.local_server import LocalServer, QuietHandler


class Handler(QuietHandler):
    def do_GET(self):
        self.reply({"version": "0.1"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.hub.refuses:
            self.reply({"error": {"message": "no"}}, 400)
            return
        assert body["model"] == self.hub.option("--served-model-name") and body["temperature"] == 0
        with self.hub.lock, torch.inference_mode():
            self.reply((self.converse if "messages" in body else self.complete)(**body))

    def reply(self, content, status=200):
        self.send(json.dumps(content).encode(), status, {"Content-Type": "application/json"})

    def converse(self, messages, max_tokens, add_special_tokens, stop, return_token_ids, **_):
        (message,) = messages
        urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
        images = [Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) for url in urls]
        generator, prompt = self.hub.generator, Template(self.hub.option("--chat-template")).render(messages=messages)
        inputs = generator.processor(
            text=prompt, images=images or None, return_tensors="pt", add_special_tokens=add_special_tokens
        )
        ids = generator.model.generate(**inputs, max_new_tokens=max_tokens)[0].tolist()
        read = inputs["input_ids"][0].tolist()
        return {"prompt_token_ids": read[self.hub.lost :], "choices": [{"token_ids": ids[len(read) :]}]}

    def complete(self, prompt, max_tokens, **_):
        choices = []
        for index, row in enumerate(prompt):
            limit = self.hub.generator.model.config.get_text_config().max_position_embeddings
            assert max_tokens == 1 and len(row) + 1 <= limit
            logits = self.hub.generator.model(torch.tensor([row])).logits[0, :-1].log_softmax(-1)
            known = [
                {
                    str(token): {
                        "logprob": row_logits[token].item(),
                        "rank": 1 + int((row_logits > row_logits[token]).sum()),
                    }
                }
                for row_logits, token in zip(logits, row[1:], strict=True)
            ]
            choices.append({"index": index, "prompt_logprobs": [None, *known]})
        return {"choices": choices[::-1]}


class Vllm(LocalServer):
    """`refuses` every question; takes the first `lost` tokens from what it says it has read."""

    def __init__(self, folder, *options):
        super().__init__(Handler)
        if sees_images(Path(folder)):
            self.generator = load_generator(str(folder), "float32")
        else:
            self.generator = SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
        self.options, self.lock = options, threading.Lock()
        self.refuses, self.lost = False, 0

    def option(self, name):
        return self.options[self.options.index(name) + 1]


if __name__ == "__main__":
    command, folder, *options = sys.argv[1:]
    assert command == "serve" and "--enable-prefix-caching" in options
    vllm = Vllm(folder, *options)
    at = (vllm.option("--host"), int(vllm.option("--port")))
    type("Server", (ThreadingHTTPServer,), {"request_queue_size": 64})(
        at, vllm.server.RequestHandlerClass
    ).serve_forever()
