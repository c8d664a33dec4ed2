"""The whole model compiled, checkpointed, under autocast, exported, generating, with LoRA: the same numbers."""

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from PIL import Image
from transformers import AutoProcessor, BitsAndBytesConfig
from transformers.utils import is_bitsandbytes_available

from tests.modeling_aligned_llava.loaded import load


TEXTS = ["<image>a<image>bcdefgh", "<image>x"]  # several images in a prompt, and rows of different length
GREEDY = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

both_heads = pytest.mark.parametrize("decoder", ["qwen2", "llama"])  # untied, tied


@pytest.fixture(scope="module")
def batches(tiny_checkpoint):
    """`batches(side)` -> the two rows above, padded on that side, and each of them alone."""
    processor = AutoProcessor.from_pretrained(tiny_checkpoint("norm-gwc"))
    images = [Image.new("RGB", (30, 30), (80 * i, 9, 200 - 60 * i)) for i in range(3)]

    def make(side):
        processor.tokenizer.padding_side = side
        both = processor(images=images, text=TEXTS, return_tensors="pt", padding=True)
        rows = [
            processor(images=of_row, text=[text], return_tensors="pt")
            for of_row, text in zip((images[:2], images[2:]), TEXTS, strict=True)
        ]
        return both, rows

    return make


@pytest.fixture
def training_batch(batches):
    both, _ = batches("right")
    return {**both, "labels": both["input_ids"].masked_fill(both["attention_mask"] == 0, -100)}


def gradients(model, run, batch):
    """Gradients of `model` by parameter name, from the loss that `run(**batch)` gives."""
    model.zero_grad()
    run(**batch).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(grads, expected):
    assert grads.keys() == expected.keys() and len(expected) > 40
    for name, gradient in expected.items():
        assert torch.equal(grads[name], gradient), name


@both_heads
def test_gradients_are_the_same_compiled_and_checkpointed(tiny_checkpoint, training_batch, decoder):
    model = load(tiny_checkpoint("norm-gwc", decoder)).train()
    expected = gradients(model, model, training_batch)
    for reentrant in (False, True):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        assert_same(gradients(model, model, training_batch), expected)
        model.gradient_checkpointing_disable()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_same(gradients(model, compiled, training_batch), expected)


@both_heads
def test_gradients_under_autocast_are_the_true_ones_rounded(tiny_checkpoint, training_batch, decoder):
    model = load(tiny_checkpoint("norm-gwc", decoder)).train()
    expected = gradients(model, model, training_batch)

    def autocast(**batch):
        with torch.autocast("cpu", torch.bfloat16):
            return model(**batch)

    rounded = gradients(model, autocast, training_batch)
    connector = [name for name in expected if "multi_modal_projector" in name]
    assert len(connector) == 6
    for name in connector:
        assert rounded[name].dtype == torch.float32
        assert F.cosine_similarity(rounded[name].flatten(), expected[name].flatten(), dim=0) > 0.999, name
        assert rounded[name].norm().item() == pytest.approx(expected[name].norm().item(), rel=0.01), name


@both_heads
def test_exports(tiny_checkpoint, batches, decoder):
    model = load(tiny_checkpoint("norm-gwc", decoder))
    inputs = {**batches("right")[0], "use_cache": False}
    program = torch.export.export(model, (), inputs, strict=False)
    with torch.no_grad():
        assert torch.equal(program.module()(**inputs).logits, model(**inputs).logits)


@both_heads
def test_generates_the_same_with_every_cache_and_padding(tiny_checkpoint, batches, decoder):
    model = load(tiny_checkpoint("norm-gwc", decoder))
    padded, rows = batches("left")
    dynamic = model.generate(**padded, **GREEDY)[:, -6:]
    for settings in ({"cache_implementation": "static"}, {"use_cache": False}):
        assert torch.equal(model.generate(**padded, **GREEDY, **settings)[:, -6:], dynamic)
    for row, expected in zip(rows, dynamic, strict=True):
        assert torch.equal(model.generate(**row, **GREEDY)[0, -6:], expected)
    assert model.generate(**padded, **GREEDY, num_beams=2).shape[1] == padded["input_ids"].shape[1] + 6


def test_generates_from_embeddings_and_without_an_image(tiny_checkpoint, batches):
    model = load(tiny_checkpoint("norm-gwc"))
    _, (_, row) = batches("left")
    expected = model.generate(**row, **GREEDY)[:, -6:]
    words = model.get_input_embeddings()(row["input_ids"])
    visual = torch.cat(model.get_image_features(row["pixel_values"]).pooler_output)
    complete = words.masked_scatter((row["input_ids"] == model.config.image_token_id)[..., None], visual)
    mask = {"attention_mask": row["attention_mask"]}
    assert torch.equal(model.generate(inputs_embeds=complete, **mask, **GREEDY), expected)
    with_image = {"inputs_embeds": words, "pixel_values": row["pixel_values"]}
    assert torch.equal(model.generate(**with_image, **mask, **GREEDY), expected)
    assert model.generate(input_ids=torch.arange(5, 15)[None], **GREEDY).shape == (1, 16)


@pytest.fixture
def lora():
    targets = r".*language_model.*\.(q|v)_proj"
    return LoraConfig(r=2, target_modules=targets, modules_to_save=["multi_modal_projector"])


@both_heads
def test_lora_trains_the_projector_and_norm_in_full(tiny_checkpoint, training_batch, tmp_path, decoder, lora):
    folder = tiny_checkpoint("norm-gwc", decoder)
    expected = gradients(model := load(folder).train(), model, training_batch)
    tuned = get_peft_model(load(folder), lora).train()
    trained = gradients(tuned, tuned, training_batch)
    full = {name: gradient for name, gradient in trained.items() if "lora" not in name}
    assert len(full) == 6 and len(trained) > 6
    for name, gradient in full.items():
        short = name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
        assert torch.equal(gradient, expected[short]), name
    torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.1).step()
    tuned.eval().save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(load(folder), tmp_path).eval()
    for name, tensor in tuned.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    merged = PeftModel.from_pretrained(load(folder), tmp_path).merge_and_unload().eval()
    with torch.no_grad():
        logits = tuned(**training_batch).logits
        # Equal up to the last bit: where a tensor lies in memory decides on the kernel.
        torch.testing.assert_close(again(**training_batch).logits, logits)
        torch.testing.assert_close(merged(**training_batch).logits, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not is_bitsandbytes_available(), reason="needs bitsandbytes")
@pytest.mark.parametrize("bits", ["load_in_8bit", "load_in_4bit"])
def test_quantised_loading_keeps_projector_and_norm_whole(tiny_checkpoint, training_batch, tmp_path, bits):
    import bitsandbytes

    folder = tiny_checkpoint("norm-gwc")
    plain, quantised = load(folder), load(folder, quantization_config=BitsAndBytesConfig(**{bits: True}))
    linear = {"load_in_8bit": bitsandbytes.nn.Linear8bitLt, "load_in_4bit": bitsandbytes.nn.Linear4bit}[bits]
    replaced = [name for name, module in quantised.named_modules() if isinstance(module, linear)]
    assert any("language_model" in name for name in replaced) and "lm_head" not in replaced
    whole = plain.model.multi_modal_projector.state_dict()
    assert whole.keys() == quantised.model.multi_modal_projector.state_dict().keys()
    for name, tensor in quantised.model.multi_modal_projector.state_dict().items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, whole[name]), name
    quantised.save_pretrained(tmp_path)
    again = load(tmp_path)
    if bits == "load_in_4bit":  # the CPU kernel of inference needs width 64; training takes the general one
        quantised.train(), again.train()
    else:
        generated = quantised.generate(**training_batch, **GREEDY)
        assert generated.shape[1] == training_batch["input_ids"].shape[1] + GREEDY["max_new_tokens"]
    assert torch.equal(again(**training_batch).logits, quantised(**training_batch).logits)


@pytest.mark.skipif(not is_bitsandbytes_available(), reason="needs bitsandbytes")
def test_qlora_trains_the_projector_and_norm_in_full(tiny_checkpoint, training_batch, lora):
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = prepare_model_for_kbit_training(load(tiny_checkpoint("norm-gwc"), quantization_config=settings))
    tuned = get_peft_model(model, lora).train()
    trained = gradients(tuned, tuned, training_batch)
    full = [name for name in trained if "multi_modal_projector" in name]
    assert len(full) == 6 and sum("lora_B" in name for name in trained) == 4
    assert all(trained[name].abs().max() > 0 for name in [*full, *(n for n in trained if "lora_B" in n)])
