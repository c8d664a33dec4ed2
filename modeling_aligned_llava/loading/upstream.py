"""Private names of other libraries that we override, read or set; renamed, most of them would stop acting in silence.

A module that needs some calls `require(__name__)` when it is imported. Public names are not here: an import of one
that is gone fails by itself. Files that travel with the weights import nothing of ours; `registration` asks for them.
"""

from importlib.metadata import version
from inspect import unwrap
from pkgutil import resolve_name
from typing import Any


# Who asks -> `module:name.attribute` -> the files that need it. The `__init__` of a class may set an attribute, and a
# function may look one up.
NEEDED = {
    "modeling_aligned_llava.loading.registration": {
        "torch.nn:Module._apply": "norm_alignment.py",
        "transformers:PreTrainedModel._init_weights": "modeling_aligned_llava.py",
        "transformers:PreTrainedModel._no_split_modules": "modeling_aligned_llava.py",
        "transformers:PreTrainedModel._keep_in_fp32_modules_strict": "modeling_aligned_llava.py, aligned_family.py",
        "transformers.core_model_loading:revert_weight_conversion._weight_conversions": "modeling_aligned_llava.py",
        "transformers.initialization:constant_._is_hf_initialized": "modeling_aligned_llava.py, alignment.py",
        "transformers:GenerationConfig._from_model_config": "from_backbones.py",
        "transformers:PreTrainedModel._is_stateful": "prefix_tree.py",
        "transformers:PreTrainedConfig._attn_implementation": "prefix_tree.py, attention.py and both harness models",
    },
    "modeling_aligned_llava.loading.dataset_locks": {
        "datasets.utils._filelock:FileLock.hash_filename_if_too_long": "dataset_locks.py",
    },
    "modeling_aligned_llava.harness.lm_eval_model": {
        "lm_eval.models.huggingface:HFLM._loglikelihood_tokens": "lm_eval_model.py",
        "lm_eval.models.huggingface:HFLM._max_length": "lm_eval_model.py",
        "lm_eval.models.huggingface:HFLM._model_generate": "lm_eval_model.py",
        "lm_eval.models.huggingface:HFLM._rank": "lm_eval_model.py",
        "lm_eval.models.huggingface:HFLM._world_size": "lm_eval_model.py",
    },
    "modeling_aligned_llava.harness.lmms_eval_model": {
        "lmms_eval.api.model:lmms._rank": "lmms_eval_model.py",
        "lmms_eval.api.model:lmms._world_size": "lmms_eval_model.py",
    },
    "eval.data.sample_lines": {  # its import, when it scores, is the check
        "lmms_eval.tasks._task_utils.mcq_extract:extract_mcq_answer": "sample_lines.py",
    },
    "train.optimization.faster_layers": {
        "torch._dynamo.config:suppress_errors": "faster_layers.py",
    },
    "train.optimization.trainer": {
        "datasets:Dataset._fingerprint": "prepared.py",
        "datasets:Dataset._indices": "prepared.py",
        "transformers:Trainer._get_train_sampler": "trainer.py",
        "transformers:Trainer._init_training_state": "trainer.py",
        "transformers:Trainer._issue_warnings_after_load": "trainer.py",
        "transformers:Trainer._save_checkpoint": "trainer.py",
        "trl:SFTTrainer._total_train_tokens": "trainer.py",
    },
}
# As in constraints.txt, which the wheel has not.
TESTED = {
    "datasets": "5.2.0",
    "lm_eval": "0.4.13",
    "lmms_eval": "0.7.3",
    "torch": "2.15.0",
    "transformers": "5.23.0",
    "trl": "1.16.0",
}


def require(module: str) -> None:
    """Check that the installed libraries have every private name that `module` asks for.

    Raises:
        ImportError: one is gone; one line names it, its library's version, and the version that has it.
    """
    for path, files in NEEDED[module].items():
        if not _exists(path):
            library = path.replace(":", ".").partition(".")[0]
            raise ImportError(
                f"{library} {version(library)} has no {path.replace(':', '.')}, which {files} needs: "
                f"pip install {library}=={TESTED[library]}"
            )


def _exists(path: str) -> bool:
    try:
        resolve_name(path)
        return True
    except (ImportError, AttributeError):
        owner, _, name = path.rpartition(".")
    try:
        holder: Any = resolve_name(owner)
    except (ImportError, AttributeError):
        return False
    made_by = vars(holder).get("__init__", holder) if isinstance(holder, type) else holder
    code = getattr(unwrap(made_by), "__code__", None)
    return code is not None and name in (*code.co_names, *code.co_consts)
