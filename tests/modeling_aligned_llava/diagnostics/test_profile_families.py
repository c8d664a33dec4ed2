"""`profile` on families that are not in the registry: each ratio is that of plain hooks, or one line says why not."""

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava.diagnostics.instruments.image_questions import in_folder
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of
from modeling_aligned_llava.loading.files import read_json
from tests.modeling_aligned_llava.diagnostics.family_checkpoints import PROFILED, REFUSED
from tests.modeling_aligned_llava.tiny_families import write_checkpoint
from tests.one_line import one_line


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for i, size in enumerate(((40, 40), (42, 70), (56, 35))):
        noise = torch.randint(0, 256, (*size, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(noise.numpy()).save(folder / f"{i}.png")
    return folder


def states_of(layers, model, inputs):
    """What enters and what leaves each layer, [2, L, tokens, D]."""
    before, after = [], []
    handles = []
    for layer in layers:
        enter = lambda _, args, kwargs: before.append(args[0] if args else kwargs["hidden_states"])  # noqa: E731
        leave = lambda _, args, output: after.append(output[0] if isinstance(output, tuple) else output)  # noqa: E731
        handles.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(layer.register_forward_hook(leave))
    with torch.no_grad():
        model(**inputs, use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack(
        [torch.stack(states).double().reshape(len(layers), -1, states[0].shape[-1]) for states in (before, after)]
    )


def by_hand(folder, images, path):
    """The ratios of a checkpoint. Visual tokens are those that other pixels change in the input of the first layer."""
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    layers, embedding = model.get_submodule(path), model.get_input_embeddings()
    special = torch.tensor([i for i, token in processor.tokenizer.added_tokens_decoder.items() if token.special])
    both, embedded = {"visual": [], "text": []}, []
    for image in in_folder(images, 3):
        inputs = inputs_of(processor, image, "cpu", torch.float32)
        noise = {k: v + torch.randn_like(v) for k, v in inputs.items() if v.is_floating_point()}
        states = states_of(layers, model, inputs)
        visual = (states[0, 0] != states_of(layers, model, {**inputs, **noise})[0, 0]).any(-1)
        ids = inputs["input_ids"].flatten()
        ids = ids[~visual] if len(ids) == len(visual) else ids
        content = ~torch.isin(ids, special)
        text = torch.zeros_like(visual)
        text[~visual] = content
        both["visual"].append(states[:, :, visual])
        both["text"].append(states[:, :, text])
        embedded.append(embedding(ids[content]).norm(dim=-1).double())
    states = {name: torch.cat(images, 2) for name, images in both.items()}
    norms = {name: torch.cat([pair[0], pair[1, -1:]]).norm(dim=-1) for name, pair in states.items()}  # [L + 1, tokens]
    factors = norms["text"][0] / torch.cat(embedded)
    rows = embedding(torch.arange(len(embedding.weight))).norm(dim=-1).double()
    rows = rows[rows > 0] * factors.median() if factors.std() < 1e-3 * factors.mean() else norms["text"][0]
    cosines = {name: torch.cosine_similarity(*pair, dim=-1) for name, pair in states.items()}
    visual, text = norms["visual"].mean(1), norms["text"].mean(1)
    stored = embedding.weight.norm(dim=-1).double()
    return {
        "tokens": {name: pair.shape[2] for name, pair in states.items()},
        "visual": visual.tolist(),
        "text": text.tolist(),
        "stored": stored[stored > 0].mean().item(),
        "embedding": rows.mean().item(),
        "ratio": (visual[0] / rows.mean()).item(),
        "median_ratio": (norms["visual"][0].median() / rows.median()).item(),
        **{f"{name} cosine": values.mean(1).tolist() for name, values in cosines.items()},
        **{f"{name} angle": values.acos().mean(1).tolist() for name, values in cosines.items()},
    }


def reported(profile):
    """The same numbers of a profile."""
    layers, norms = profile["layers"], profile["norms"]
    both = ("visual", "text")
    assert norms["visual tokens at layer 0"]["mean"] == pytest.approx(layers["visual"]["norm"]["mean"][0])
    assert norms["text tokens at layer 0"]["mean"] == pytest.approx(layers["text"]["norm"]["mean"][0])
    return {
        "tokens": {name: layers[name]["norm"]["count"][0] for name in both},
        **{name: layers[name]["norm"]["mean"] for name in both},
        "stored": norms["text embeddings, stored rows"]["mean"],
        "embedding": norms["text embeddings"]["mean"],
        "ratio": profile["ratio"],
        "median_ratio": profile["median_ratio"],
        **{f"{name} {quantity}": layers[name][quantity]["mean"] for quantity in ("cosine", "angle") for name in both},
    }


@pytest.mark.parametrize("name", PROFILED)
def test_every_ratio_is_that_of_plain_hooks(name, images, tmp_path, run):
    build, path = PROFILED[name]
    folder, out = write_checkpoint(build, tmp_path / "model"), tmp_path / "profile.json"
    run("profile", folder, "--images", images, "--json", out)
    ratios, expected = reported(read_json(out)), by_hand(folder, images, path)
    medians = ratios.pop("median_ratio"), expected.pop("median_ratio")
    assert medians[0] == pytest.approx(medians[1], rel=0.05)  # a profile's quantiles are those of a histogram
    for key, value in expected.items():
        assert ratios[key] == pytest.approx(value, rel=1e-4), key


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_without_ratios_is_one_line(name, images, tmp_path, run):
    build, line = REFUSED[name]
    with one_line(line):
        run("profile", write_checkpoint(build, tmp_path / "model"), "--images", images)
