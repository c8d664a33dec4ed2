"""The card of a checkpoint and its publication, against a stand-in of the Hub."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from transformers import AutoModelForImageTextToText

from eval.data.benchmarks import BENCHMARKS, BY_KEY
from eval.report import push
from eval.report.card import measured_scores, model_card
from eval.report.finished_run import is_official
from eval.score.scores import Model, score_rows
from modeling_aligned_llava import align
from modeling_aligned_llava.loading.files import read_json, write_json
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint
from tests import REPOSITORY
from tests.eval.score_rows import nine
from tests.hub_stand_in import TOKEN, HubStandIn
from tests.local_server import Fault
from tests.modeling_aligned_llava.tiny_families import write_checkpoint
from tests.one_line import one_line
from tests.pages import blocks


RECIPE = {"method": "norm-gwc", "global_batch_size": "64", "learning_rates": "{'a|b': 0.001}", "max_grad_norm": "1.0"}
PRIVATE = "/home/somebody"  # stands for every path on a machine


@pytest.fixture
def results(tiny_checkpoint, tmp_path):
    """A run with two models; MMStar failed. Returns (run folder, checkpoint of norm-gwc)."""
    run = tmp_path / "results/toy"
    for method in ("baseline", "norm-gwc"):
        stage1, stage2 = (run / "checkpoints" / method / stage for stage in ("stage1", "stage2"))
        shutil.copytree(tiny_checkpoint(method), stage2)
        paths = {"output_dir": f"{PRIVATE}/out", "data_path": f"{PRIVATE}/a.json"}
        backbones = {"vision_tower": f"{PRIVATE}/siglip", "language_model": "Qwen/Qwen2.5-7B-Instruct"}
        write_json(stage1 / "settings.json", RECIPE | paths | backbones | {"dataset": "liuhaotian/LLaVA-Pretrain"})
        write_json(stage2 / "settings.json", RECIPE | paths | {"dataset": "tinyworld", "global_batch_size": "32"})
        write_json(stage2 / "training_complete.json", {"method": method, "seed": 42, "steps": 300})
        write_json(stage2 / "optimizer.json", {"not": "published"})
    gain = {"l2": 0.5, "mean_abs": 0.0134, "mean_abs_std": 0.0, "std": 0.0}
    write_json(stage2 / "norm_parameters.json", {"gain": gain, "bias": gain})
    norms = {"mean": 1.5, "std": 0.25, "median": 1.25, "count": 8}
    profile = {"model": f"{PRIVATE}/x", "images": 2, "norms": {"text embeddings": norms}, "ratio": 1.0}
    profile["verdict"] = {"lines": ["Verdict: the visual tokens are inert."]}
    write_json(stage2 / "norm_profile.json", profile)
    folders = {method: run / "checkpoints" / method / "stage2" for method in ("baseline", "norm-gwc")}
    models = {
        name: {"method": name, "seed": 42, "backbone": "toy", "path": str(path), "sha256": hash_checkpoint(path)}
        for name, path in folders.items()
    }
    record = {"models": models, "data": {"root": str(tmp_path / "mirrors")}, "hardware": {"cpu": "a CPU", "gpus": []}}
    record["versions"] = {"python": "3.11.0", "lmms-eval": "0.7.3"}
    write_json(run / "run.json", record)
    failed = {"status": "failed", "reason": f"ValueError: {PRIVATE}/a | b"}
    evaluated = [Model(name, "toy", name, 42) for name in models]
    scores = {"baseline": nine(20), "norm-gwc": nine(30, mmstar=failed)}
    write_json(run / "scores.json", score_rows(evaluated, scores, "baseline"))
    return run, folders["norm-gwc"]


def test_metadata_is_the_hubs(results):
    run, checkpoint = results
    card = ModelCard(str(model_card(checkpoint, measured_scores(checkpoint, run), "someone/aligned")))  # parsed again
    metadata = yaml.safe_load(card.content.split("---")[1])
    assert metadata["base_model"] == ["Qwen/Qwen2.5-7B-Instruct"]
    assert (metadata["pipeline_tag"], metadata["library_name"]) == ("image-text-to-text", "transformers")
    assert metadata["datasets"] == ["liuhaotian/LLaVA-Pretrain"]
    assert metadata["license"] == "other"  # the vision tower's is not known
    name, entries = model_index_to_eval_results(metadata["model-index"])
    assert name == "aligned" and len(entries) == len(BENCHMARKS) - 1
    assert {entry.metric_value for entry in entries} == {75.0}
    assert "official" in card.text and not {entry.dataset_type for entry in entries} & {b.folder for b in BENCHMARKS}
    hellaswag = next(entry for entry in entries if entry.dataset_type == "toy-hellaswag")
    assert hellaswag.task_type == "text-generation" and hellaswag.metric_name == "hellaswag acc_norm,none, percent"


def test_the_text_says_what_is_known_and_what_is_not_and_its_tables_are_whole(results):
    run, checkpoint = results
    text = model_card(checkpoint, measured_scores(checkpoint, run), "someone/aligned").text
    for line in (
        "| vision tower | not recorded | not known here |",
        "| language model | Qwen/Qwen2.5-7B-Instruct | apache-2.0 |",
        "| data | tinyworld | apache-2.0 |",
        "| setting | stage1 | stage2 |",
        "| global_batch_size | 64 | 32 |",
        r"| learning_rates | {'a\|b': 0.001} | {'a\|b': 0.001} |",
        "Mean absolute gain 0.0134",
        "| `norm_target` | text |",
        "| text embeddings | 1.5000 | 0.2500 | 1.2500 | 8 |",
        "- mmstar: failed (ValueError)",
        "- pope: 10.0% of the answers could not be read",
        "| toy baseline | 50.00<br>",
        "This checkpoint is **toy norm-gwc**, seed 42.",
        "| Qwen2.5-7B norm-gwc (paper) | 77.66 |",
        'from_pretrained("someone/aligned", trust_remote_code=True)',
    ):
        assert line in text, line
    assert PRIVATE not in text and str(run.parent) not in text and "vision_config" not in text
    assert model_card(checkpoint, measured_scores(checkpoint, run), "someone/aligned").text == text
    lines = text.splitlines()
    for before, rule, after in zip(lines, lines[1:], lines[2:], strict=False):
        if rule.startswith("|---"):
            columns = [line.replace("\\|", "").count("|") for line in (before, rule, after)]
            assert len(set(columns)) == 1, (before, rule, after)


def test_the_card_of_one_seed_has_the_mean_and_its_own_scores(results):
    run, checkpoint = results
    record = read_json(run / "run.json")
    models = [Model(f"{m}-{s}", "toy", m, s) for m in record["models"] for s in (42, 43)]
    scores = {"baseline-42": nine(20), "baseline-43": nine(22), "norm-gwc-42": nine(30), "norm-gwc-43": nine(34)}
    one_seed = "One training seed: the intervals cover"
    assert one_seed in model_card(checkpoint, measured_scores(checkpoint, run), "a/b").text
    write_json(run / "scores.json", score_rows(models, scores, "baseline"))
    card = model_card(checkpoint, measured_scores(checkpoint, run), "a/b")
    assert {entry.metric_value for entry in card.data.eval_results} == {75.0}
    shared, alone = card.text.split("### This checkpoint alone")
    assert "| toy norm-gwc, 2 seeds | 80.00<br>" in shared and "| toy norm-gwc | 75.00<br>" in alone
    assert "2 seeds" not in alone and one_seed not in card.text


def test_names_and_reasons_are_text(results):
    run, checkpoint = results
    evil = "<img src=x onerror=alert(1)>[a](javascript:alert(1))"
    for name in ("run.json", "scores.json"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace('"toy"', json.dumps(evil)).replace("ValueError", f"ValueError {evil}"))
    card = model_card(checkpoint, measured_scores(checkpoint, run), "a/b")
    assert "<img" not in card.text and "](javascript" not in card.text and "&lt;img src=x" in card.text
    assert "| toy norm-gwc" not in card.text and "p < 0.05" in card.text.replace("\\", "")


def test_a_bare_checkpoint_has_a_card_too(results, tmp_path):
    run, checkpoint = results
    bare = tmp_path / "bare"
    shutil.copytree(checkpoint, bare)
    for name in ("settings.json", "norm_parameters.json", "norm_profile.json", "training_complete.json"):
        (bare / name).unlink()
    text = model_card(bare, measured_scores(bare, run), "a/b").text
    assert "Not recorded beside the weights." in text and "| data | not recorded |" in text
    assert "Norm profile" not in text and "after training" not in text


SIGLIP = "google/siglip-so400m-patch14-384"


def name_backbones(checkpoint, language):
    config = read_json(checkpoint / "config.json")
    config["vision_config"]["_name_or_path"] = SIGLIP
    config["text_config"]["_name_or_path"] = language
    write_json(checkpoint / "config.json", config)


def test_the_licence_is_the_strictest_known_one(results):
    run, checkpoint = results
    expected = {
        "Qwen/Qwen2.5-7B-Instruct": "apache-2.0",
        "meta-llama/Llama-3.2-3B-Instruct": "llama3.2",
        "someone/else": "other",
    }
    for language, licence in expected.items():
        name_backbones(checkpoint, language)
        record = read_json(run / "run.json")
        record["models"]["norm-gwc"]["sha256"] = hash_checkpoint(checkpoint)
        write_json(run / "run.json", record)
        card = model_card(checkpoint, measured_scores(checkpoint, run), "a/b")
        assert (card.data.license, card.data.base_model) == (licence, [SIGLIP, language])


def test_a_decoder_that_tells_its_source_is_named_by_it(results):
    run, checkpoint = results
    source = {"name": "HuggingFaceTB/SmolLM2-135M-Instruct", "license": "apache-2.0", "precision": "rounded to 4 bits"}
    write_json(checkpoint.parent / "stage1" / "training_complete.json", {"language_model_source": source})
    card = model_card(checkpoint, measured_scores(checkpoint, run), "a/b")
    assert "| language model | HuggingFaceTB/SmolLM2-135M-Instruct (rounded to 4 bits) | apache-2.0 |" in card.text
    assert card.data.base_model == ["HuggingFaceTB/SmolLM2-135M-Instruct"]


def test_only_official_sizes_are_official(tmp_path):
    cells = [{"benchmark": b.key, "status": "ok", "n": b.num_questions} for b in BENCHMARKS]
    assert is_official(cells, tmp_path)
    assert not is_official([cells[0] | {"n": 100}, *cells[1:]], tmp_path)
    assert not is_official([], tmp_path)
    (tmp_path / "boxes.json").write_text("{}")
    ocrbench = [{"benchmark": "ocrbench", "status": "ok", "n": BY_KEY["ocrbench"].num_questions}]
    assert not is_official(ocrbench, tmp_path)


def test_a_wrong_call_is_one_line(results, tmp_path, refusal):
    run, checkpoint = results
    message = partial(refusal, push.main, "--dry-run")
    assert "no checkpoint there" in message(tmp_path / "no", "a/b", "--results", run)
    assert "run.json" in message(checkpoint, "a/b", "--results", tmp_path)
    assert "is not a repository name" in message(checkpoint, "a/b/c", "--results", run)
    (checkpoint / "model.safetensors").write_bytes(b"others")
    assert "not among those" in message(checkpoint, "a/b", "--results", run)
    write_json(checkpoint / "config.json", {"model_type": "llava"})
    assert "is a llava model" in message(checkpoint, "a/b", "--results", run)


@pytest.mark.slow
def test_one_commit_with_card_and_weights(results):
    run, checkpoint = results
    command = [sys.executable, "-m", "eval.report.push", str(checkpoint), "someone/aligned", "--results", str(run)]

    def publish(env, *options):
        done = subprocess.run([*command, *options], cwd=REPOSITORY, env=env, capture_output=True, text=True)  # noqa: S603
        assert TOKEN not in done.stdout + done.stderr
        return done

    with HubStandIn() as hub:
        dry = publish(hub.env, "--dry-run")
        assert dry.returncode == 0 and "model-index" in dry.stdout and "model.safetensors" in dry.stdout
        assert not [request for request in hub.requests if request.startswith(("POST", "PUT"))]

        hub.faults.append(Fault("PUT /lfs", "503"))  # the client tries again by itself
        done = publish(hub.env, "--private", "--revision", "v1")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"published: {hub.endpoint}/someone/aligned/commit/")
        assert len([request for request in hub.requests if "/commit/" in request]) == 1
        assert hub.repositories["someone/aligned"]["visibility"] == "private" and not hub.files["main"]

        refused = publish(hub.env | {"HF_TOKEN": "hf_wrong"})
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1 and "401" in refused.stderr
    there = hub.files["v1"]
    assert there["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert json.loads(there["config.json"]) == read_json(checkpoint / "config.json")
    assert ModelCard(there["README.md"].decode()).data.eval_results
    assert {"modeling_aligned_llava.py", "hub_folder.py", "tokenizer.json", "chat_template.jinja"} <= set(there)
    assert not {"settings.json", "optimizer.json", "training_complete.json"} & set(there)


def listed(*tasks):
    return yaml.safe_dump({"name": "a benchmark", "tasks": [{"id": name, "split": split} for name, split in tasks]})


@pytest.mark.slow
def test_scores_on_benchmarks_that_the_hub_lists_are_published_for_its_leaderboards(results, tmp_path):
    """Official scores alone, and of a set with several tasks the one of our split."""
    run, checkpoint = results
    command = [sys.executable, "-m", "eval.report.push", str(checkpoint), "someone/aligned", "--results", str(run)]
    folders = {key: BY_KEY[key].folder for key in ("pope", "ai2d", "mmbench")}

    def published(hub):
        env = hub.env | {"HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr
        there = hub.files["main"]
        return {name: yaml.safe_load(there[name]) for name in there if name.startswith(".eval_results")}

    with HubStandIn() as hub:
        hub.datasets[f"{folders['pope']}/eval.yaml"] = listed(("pope", "test")).encode()
        two = (("other", "train"), ("ai2d", BY_KEY["ai2d"].split))
        hub.datasets[f"{folders['ai2d']}/eval.yaml"] = listed(*two).encode()
        hub.datasets[f"{folders['mmbench']}/eval.yaml"] = listed(("en", "other"), ("cn", "another")).encode()
        assert published(hub) == {}
        scores = read_json(run / "scores.json")
        for row in scores:
            row["n"] = BY_KEY[row["benchmark"]].num_questions if row["benchmark"] in BY_KEY else row["n"]
        write_json(run / "scores.json", scores)
        written = published(hub)
    assert written.keys() == {".eval_results/pope.yaml", ".eval_results/ai2d.yaml"}
    (entry,) = written[".eval_results/ai2d.yaml"]
    assert entry["dataset"] == {"id": folders["ai2d"], "task_id": "ai2d"} and entry["value"] == 75.0
    assert entry["source"]["name"].startswith("modeling_aligned_llava 0.")
    assert "lmms-eval 0.7.3, ai2d" in entry["notes"] and "0 shots, greedy decoding" in entry["notes"]


def test_a_model_of_another_family_is_published_with_its_code_and_card(results, tmp_path):
    run, _ = results
    plain = write_checkpoint("qwen2_5_vl", tmp_path / "plain")
    folder = run / "checkpoints/norm/finetuned"
    align(AutoModelForImageTextToText.from_pretrained(plain), "norm").save_pretrained(folder)
    write_json(folder / "settings.json", {"model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct", "method": "norm"})
    record = read_json(run / "run.json")
    entry = {"method": "norm", "seed": 42, "backbone": "qwen", "path": str(folder), "sha256": hash_checkpoint(folder)}
    write_json(run / "run.json", record | {"models": record["models"] | {"norm": entry}})
    card = ModelCard(str(model_card(folder, measured_scores(folder, run), "someone/qwen")))
    assert card.data.base_model == ["Qwen/Qwen2.5-VL-3B-Instruct"]
    for text in ("A qwen2_5_vl model of the", "a layernorm after the projector", "| `norm_init` | text |"):
        assert text in card.text
    files = push.published_files(folder)
    assert {"aligned_family.py", "modeling_aligned_llava.py", "tokenizer.json", "config.json"} <= files.keys()
    assert str(tmp_path) not in files["config.json"].decode()
    assert "resized to a square" not in card.text  # Qwen's are not
    write_json(folder / "adapter_config.json", {"base_model_name_or_path": f"{PRIVATE}/qwen"})
    with one_line("holds adapters of .*/qwen, which others lack"):
        push.published_files(folder)


def test_local_paths_in_an_old_configuration_are_left_out(results):
    _, checkpoint = results
    name_backbones(checkpoint, f"{PRIVATE}/llama")
    published = json.loads(push.published_files(checkpoint)["config.json"])
    assert "_name_or_path" not in published["text_config"] and published["vision_config"]["_name_or_path"] == SIGLIP


def test_the_documented_command_makes_a_static_space_of_the_report(tmp_path):
    report = tmp_path / "results/RUN/report.html"
    report.parent.mkdir(parents=True)
    report.write_text("<p>scores</p>")
    (command,) = (block for block in blocks(REPOSITORY / "docs/loading.md", "bash") if "--type space" in block)
    with HubStandIn() as hub:
        environment = hub.env | {"PATH": f"{Path(sys.executable).parent}:{hub.env['PATH']}"}
        subprocess.run(["bash", "-e"], input=command, text=True, cwd=tmp_path, env=environment, check=True)  # noqa: S607
        assert hub.repositories["me/report"].items() >= {"type": "space", "sdk": "static"}.items()
        assert hub.files["main"] == {"index.html": report.read_bytes()}
