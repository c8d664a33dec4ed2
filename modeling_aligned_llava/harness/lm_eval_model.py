"""lm-eval model `aligned_llava`: a language model, or the decoder of a vision-language model, on text tasks.

    python -m modeling_aligned_llava.harness.lm_eval_model run --model aligned_llava \\
        --model_args pretrained=PATH --tasks mmlu

lm-eval has no entry points for models, so this module is also its command line. Log-likelihoods are those of a plain
forward pass. What requests share (few-shot blocks, the context of several endings) is computed once, and logits are
computed only where a continuation is scored.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, LogitsProcessorList

from modeling_aligned_llava.alignment import load_vision_language
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.answer_log import AnswerKey, AnswerLog
from modeling_aligned_llava.harness.provenance import launched, own_log, producer_digest
from modeling_aligned_llava.inference.finite_logits import FiniteLogits, no_answer
from modeling_aligned_llava.inference.memory import budget, halving
from modeling_aligned_llava.inference.prefix_plan import Segment, pack, plan
from modeling_aligned_llava.inference.prefix_tree import open_tree
from modeling_aligned_llava.inference.prompt import check_open_end
from modeling_aligned_llava.inference.served import UNLIMITED
from modeling_aligned_llava.inspection.forward_pass import sees_targets
from modeling_aligned_llava.loading.checkpoint import load_part, load_strict, local_folder
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint, hash_text
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer
from modeling_aligned_llava.loading.upstream import require


require("modeling_aligned_llava.harness.lm_eval_model")  # run as a program, its name is another

# Arguments of HFLM that act on a model that is loaded already; the others would be accepted without effect.
ACTING = {"max_length", "add_bos_token", "prefix_token_id"}
Request = tuple[tuple[str, str] | None, list[int], list[int]]  # (texts, tokens of context, tokens of continuation)


@register_model("aligned_llava")
class AlignedLlavaLM(HFLM):
    """Log-likelihoods for lm-eval's `loglikelihood` tasks (and HFLM's own `generate_until`).

    Args:
        pretrained: checkpoint folder or Hub id, of a vision-language model or a causal language model.
        dtype: "auto", "float32", "bfloat16", ...
        device: torch device of the model; under `accelerate launch` that of the process; without a GPU the CPU.
        batch_size: rows per forward pass; recorded with every score.
        answer_log: JSONL file that stores every batch; a killed run continues from it.
        fingerprint: sha256 of the checkpoint if it is known already (default: computed).
        shared_prefix: compute what requests share only once, if the model allows it.
        trust_remote_code: run model code from the checkpoint.
        server: the vLLM that scores instead, in `dtype` (`inference/served.py`).
        progress: called with the number of requests after each batch, instead of a progress bar.
        **kwargs: `max_length`, `add_bos_token` and `prefix_token_id` of lm-eval's own models.

    Raises:
        UserError: the checkpoint cannot be loaded or score text, or another setting is given.
    """

    def __init__(
        self,
        pretrained: str,
        dtype: str = "auto",
        device: str | None = None,
        batch_size: int | str = 1,
        answer_log: str | None = None,
        fingerprint: str | None = None,
        shared_prefix: bool = True,
        trust_remote_code: bool = False,
        server: Any = None,
        progress: Callable[[int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        if unread := sorted(name for name in kwargs.keys() - ACTING if kwargs[name] is not None):
            raise UserError(f"aligned_llava takes no {unread[0]}; of lm-eval's settings {', '.join(sorted(ACTING))}")
        folder = local_folder(pretrained, trust_remote_code)
        accelerator = launched()
        if accelerator is not None:
            device = str(accelerator.device)
        elif (device or "").startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"  # like lm-eval's own models: its command line asks for cuda:0 by default
        config = load_part(AutoConfig, folder, trust_remote_code=trust_remote_code)
        multimodal = config.get_text_config() is not config
        model: Any
        if server is None:
            load = load_vision_language if multimodal else partial(load_strict, AutoModelForCausalLM)
            model = load(folder, dtype=dtype, trust_remote_code=trust_remote_code)
            model.to(device or "cpu")
            ids = torch.tensor([[1, 2, 3]], device=model.device)
            if sees_targets(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, 2):
                raise UserError(f"{config.model_type} cannot score text: its decoder sees the tokens that follow")
        else:
            auto_class = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
            with torch.device("meta"):  # lm-eval asks it for its shape
                model = auto_class.from_config(config, trust_remote_code=trust_remote_code)
        tokenizer = load_part(SavedTokenizer, folder, trust_remote_code=trust_remote_code)
        check_open_end(tokenizer, folder)
        if multimodal and "gemma" in config.get_text_config().model_type:
            kwargs.setdefault("add_bos_token", True)  # lm-eval's rule, which sees the name of the whole model alone
        super().__init__(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=int(batch_size), **kwargs)
        if accelerator is not None:  # lm-eval reads these to distribute the documents
            self.accelerator = accelerator
            self._rank, self._world_size = accelerator.process_index, accelerator.num_processes
        self._server = server
        if server is not None:
            self._max_length = self.max_length - 2  # vLLM counts the last token, and generates one
        self._tree = open_tree(model) if shared_prefix and server is None else None
        self._budget = self._tree.budget if self._tree else budget(model) if server is None else UNLIMITED
        self.log_to(answer_log)
        self._weights = fingerprint or hash_checkpoint(folder)
        self._dtype = dtype if server else str(model.dtype).removeprefix("torch.")
        self._settings = json.dumps(
            {
                "dtype": self._dtype,
                "batch_size": self.batch_size,
                "shared_prefix": self._tree is not None,
                "attention": model.config.get_text_config()._attn_implementation,
                "max_length": self.max_length,
                "engine": server.engine if server else "transformers",
                "producer": producer_digest(str(self.device)),
            },
            sort_keys=True,
        )
        self.progress = progress

    def log_to(self, answer_log: str | None) -> None:
        """Write the following scores to another file; None keeps them in memory."""
        self._log = AnswerLog(own_log(answer_log, self.rank))

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Return (summed log-probability of the continuation, whether it is the greedy one) for each request."""
        asked: dict[tuple[int, ...], list[int]] = defaultdict(list)  # what the model reads -> requests
        for index, (_, context, continuation) in enumerate(requests):
            if not context or not continuation or len(continuation) > self.max_length:
                raise ValueError(f"request {index}: {len(context)} and {len(continuation)} tokens cannot be scored")
            asked[tuple((context + continuation)[-(self.max_length + 1) : -1])].append(index)
        rows = [list(row) for row in asked]
        owners = list(asked.values())
        scored = [max(len(requests[index][2]) for index in indices) for indices in owners]
        free = [len(row) - tail if self._tree else 0 for row, tail in zip(rows, scored, strict=True)]
        segments = plan(rows, [""] * len(rows), [(0, most) for most in free], self.batch_size)
        results: dict[int, tuple[float, bool]] = {}
        release = self._tree.release if self._tree else lambda: None
        with tqdm(
            total=len(requests), desc="log-likelihoods", disable=disable_tqdm or self.progress is not None
        ) as bar:
            lengths = [len(row) for row in rows]
            for batch in pack(segments, lengths, self.batch_size, self._budget.tokens, padded=self._tree is None):
                members = [row for segment in batch for row in segment.rows]
                indices = [index for row in members for index in owners[row]]
                keys = [self._key(requests[index]) for index in indices]
                answers = self._log.find(keys)
                if answers is None:
                    tails = {row: [requests[index][2] for index in owners[row]] for row in members}
                    scores = halving(partial(self._score, rows, tails), batch, release)
                    for index, (value, _) in zip(indices, scores, strict=True):
                        if not math.isfinite(value):
                            raise no_answer(self.model.config, self._dtype, "".join(requests[index][0] or ()))
                    answers = [json.dumps(score) for score in scores]
                    self._log.append(keys, answers)
                for index, answer in zip(indices, answers, strict=True):
                    value, greedy = json.loads(answer)
                    results[index] = value, greedy
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], (value, greedy))
                (self.progress or bar.update)(len(indices))
        return [results[index] for index in range(len(requests))]

    def _key(self, request: Request) -> AnswerKey:
        tokens = hash_text(json.dumps(request[1:]))
        return AnswerKey(self._weights, "loglikelihood", 0, tokens, "", self._settings)

    @torch.inference_mode()
    def _score(
        self, rows: list[list[int]], tails: dict[int, list[list[int]]], batch: list[Segment]
    ) -> list[tuple[float, bool]]:
        """Score the continuations `tails[row]` of each row of the batch, row by row."""
        members = [row for segment in batch for row in segment.rows]
        if self._server is not None:
            asked = [
                (rows[row][: len(rows[row]) + 1 - len(tail)] + tail, len(tail))
                for row in members
                for tail in tails[row]
            ]
            return self._server.log_likelihoods([ids for ids, _ in asked], [scored for _, scored in asked])
        kept = {row: max(len(tail) for tail in tails[row]) for row in members}
        logits = (
            self._tree.read(rows, batch, kept)
            if self._tree
            else self._padded([rows[row] for row in members], max(kept.values()))
        )
        scores = []
        for row, row_logits in zip(members, logits, strict=True):  # row_logits: (kept, vocabulary)
            total, greedy = row_logits.float().logsumexp(-1), row_logits.argmax(-1)
            for tail in tails[row]:
                target = torch.tensor(tail, device=row_logits.device)
                chosen = row_logits[-len(tail) :].gather(-1, target[:, None])[:, 0].float()
                value = (chosen - total[-len(tail) :]).sum()
                scores.append((value.item(), bool((greedy[-len(tail) :] == target).all())))
        return scores

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        finite = FiniteLogits(self.model, self.tokenizer.batch_decode(context))
        return super()._model_generate(
            context, max_length, stop, logits_processor=LogitsProcessorList([finite]), **options
        )

    def _padded(self, rows: list[list[int]], kept: int) -> list[Tensor]:
        """Logits of the last `kept` tokens of each row, (kept, V), for models that cannot read a prefix tree."""
        width = max(len(row) for row in rows)
        pad = self.tokenizer.pad_token_id or 0
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self.model.device)
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=self.model.device)
        position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
        options = {"position_ids": position_ids, "use_cache": False, "logits_to_keep": kept}
        return list(self.model(ids, attention_mask=mask, **options).logits)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
