"""The cost model against what training really keeps, sends and computes, on shapes that a CPU can run."""

import pytest
import torch

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from train.cost import ADAM, Batch, count, memory, meta_model


STAGES = {
    1: ({"multi_modal_projector": 1e-3}, [r"^model\.vision_tower\.", r"^model\.language_model\.", r"^lm_head\."]),
    2: ({"": 1e-5}, [r"vision_tower\.post_layernorm\."]),
}


def small_config(scale=1):
    """Wide enough that matrices outweigh the rest; `scale` widens it."""
    vision = {"model_type": "siglip_vision_model", "hidden_size": 128 * scale, "intermediate_size": 512 * scale}
    vision |= {"num_hidden_layers": 3, "num_attention_heads": 4, "patch_size": 14, "image_size": 112}
    text = {"model_type": "qwen2", "hidden_size": 256 * scale, "intermediate_size": 1024 * scale}
    text |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
    return AlignedLlavaConfig(
        vision_config={**vision, "vision_use_head": False},
        text_config=text,
        image_token_index=511,
        image_seq_length=64,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        text_norm=1.0,
    )


CONFIG = small_config()
BATCH = Batch(rows=2, length=160, images=2)


def real_model(config, stage):
    model = AlignedLlavaForConditionalGeneration(config).train()
    meta = meta_model(config, *STAGES[stage], bf16=False)
    for parameter, counted in zip(model.parameters(), meta.parameters(), strict=True):
        parameter.requires_grad_(counted.requires_grad)
    return model, meta


def inputs(config):
    ids = torch.randint(0, 500, (BATCH.rows, BATCH.length), generator=torch.Generator().manual_seed(0))
    ids[:, :64] = config.image_token_id
    return {"input_ids": ids, "pixel_values": torch.randn(BATCH.images, 3, 112, 112), "use_cache": False}


def backward(model, batch):
    """Leave a gradient in every trained parameter; the head, which is not called, gets zeros."""
    model.model(**batch).last_hidden_state.sum().backward()
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize("stage", [1, 2])
def test_weights_gradients_and_moments_are_counted_exactly(stage):
    model, meta = real_model(CONFIG, stage)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    backward(model, inputs(CONFIG))
    optimizer.step()
    expected = memory(meta, BATCH, bf16=False)
    assert expected.weights == 4 * sum(p.numel() for p in model.parameters())
    assert expected.gradients == sum(4 * p.grad.numel() for p in model.parameters() if p.grad is not None)
    moments = sum(s.numel() * 4 for state in optimizer.state.values() for n, s in state.items() if n != "step")
    assert expected.optimizer == moments == ADAM * count(meta)


def saved_bytes(model, batch):
    """Bytes that the backward pass keeps, beyond weights and inputs."""
    known = {
        tensor.untyped_storage().data_ptr()
        for tensor in (*model.parameters(), *batch.values())
        if torch.is_tensor(tensor)
    }
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.model(**batch).last_hidden_state
    return sum(kept.values()), output


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("stage", [1, 2])
def test_activations_are_at_most_what_is_counted(stage, attention):
    model, meta = real_model(CONFIG, stage)
    for each in (model, meta):
        each.get_decoder().set_attn_implementation(attention)
    kept, output = saved_bytes(model, inputs(CONFIG))
    head = 4 * model.lm_head.weight.numel() if stage == 2 else 0
    counted = memory(meta, BATCH, bf16=False).activations - head
    assert kept <= counted <= kept * (1.5 if stage == 2 else 3)  # a frozen layer keeps fewer of its inputs
    del output


def test_sharding_divides_what_it_should():
    meta = meta_model(CONFIG, *STAGES[2], bf16=True)
    one, ddp, fsdp2 = (memory(meta, BATCH, engine=e, processes=8) for e in ("one", "ddp", "fsdp2"))
    assert (fsdp2.weights, fsdp2.optimizer) == (one.weights / 8, one.optimizer / 8)
    assert ddp.gradients == 2 * one.gradients == 16 * fsdp2.gradients
    checkpointed = memory(meta, BATCH, engine="fsdp2", processes=8, checkpointing=True)
    assert checkpointed.activations < fsdp2.activations
