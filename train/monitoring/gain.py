"""Warns once when the gain of the alignment norm collapses: visual tokens then enter the decoder as almost zeros."""

from transformers import TrainerCallback
from trl.trainer.utils import maybe_gather_lm_head_ctx

from modeling_aligned_llava.inspection.norm_parameters import alignment_norm, collapsed, effective_parameters
from train.stage_folder import say


class GainWatch(TrainerCallback):
    """Looks at the gain at each logged step."""

    warned = False

    def on_log(self, args, state, control, model=None, **kwargs):
        norm = alignment_norm(model)
        if norm is None or norm.weight is None or self.warned:
            return
        with maybe_gather_lm_head_ctx(norm.weight):  # TRL's, for ZeRO-3; FSDP2 gathers too, on every process
            gain, _ = effective_parameters(norm)
        self.warned = collapsed(gain, norm)
        if self.warned and state.is_world_process_zero:
            say(
                f"warning: step {state.global_step}: the gain of the norm has collapsed: mean |gain| is "
                f"{gain.abs().mean():.1e}, below compensation_eps {norm.compensation_eps:.1e}"
            )
