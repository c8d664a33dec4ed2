"""The tokenizers of Llama-3.2 and Qwen2.5 in training, evaluation and diagnostics, against their own templates."""

import json
import unicodedata
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoProcessor, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from modeling_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.inspection.content_text import is_special, special_ids
from modeling_aligned_llava.loading.chat_templates import chat_template
from modeling_aligned_llava.methods import method_fields
from tests.real_tokenizers import PACKAGES, real_tokenizer, spans
from tests.train.data.rows import turns
from train.data.llava_tokens import LlavaTokens, expand
from train.data.row import messages_of
from train.data.row_tokens import IGNORE_INDEX


pytestmark = pytest.mark.slow
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
IMAGE_TOKENS = 4  # of the tiny tower
DECODERS = {  # with the end tokens of the two models' generation configs
    "llama3": (LlamaForCausalLM, LlamaConfig, {"vocab_size": 128256, "eos_token_id": [128001, 128008, 128009]}),
    "qwen2_5": (Qwen2ForCausalLM, Qwen2Config, {"vocab_size": 152064, "eos_token_id": [151645, 151643]}),
}
END = {"llama3": "<|eot_id|>", "qwen2_5": "<|im_end|>"}
IMAGE_ID = {"llama3": 128256, "qwen2_5": 151665}
PAD = {"llama3": "<|finetune_right_pad_id|>", "qwen2_5": "<|endoftext|>"}
DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
# What a model's own template writes before the first turn, and ours does not.
THEIRS_ALONE = {
    "llama3": f"<|start_header_id|>system<|end_header_id|>\n\n{DATES}<|eot_id|>",
    "qwen2_5": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n",
}


# LLaVA's rows: turns and the number of images.
ROWS = {
    "one turn": (turns("<image>\nHow many?", "Two."), 1),
    "image after the question": (turns("How many?\n<image>", "Two."), 1),
    "turns": (turns("<image>\nWhat?", "A dog.\nIt runs.", "Sure?", "Yes , 12345 times ."), 1),
    "text alone": (turns("Why is 1 + 1 = 2 ?", "x == ' .' and don 't\n\n```python\n\tpass\n```"), 0),
    "several images": (turns("<image>\n<image>\nSame?", "No."), 2),
    "images within the text": (turns("First <image> then\n<image>\nend", "ok"), 2),
    "a system text": ([{"from": "system", "value": "Be brief."}, *turns("Why?", "So.")], 0),
    "not ASCII": (turns("<image>\nOù est 猫? ‏שלום", "là-bas 🐈‍⬛ e\u0301 ﬁn №"), 1),
    "space inside": (turns("<image>\n a  b ", "1  2\t3 \n\n\n 4"), 1),
    "space around": (turns("Padded?", "\n\n indented \n"), 0),
    "like a token": (turns("What is that?", "It is < image > or <|im|> or [INST]."), 0),
    "digits": (turns("2024-07-26 3.14159", "1000000"), 0),
}


@pytest.fixture(scope="module", params=PACKAGES)
def family(request, tiny_backbones, tmp_path_factory):
    """An assembled checkpoint with a real tokenizer and a tiny decoder of its vocabulary, and its parts."""
    name = request.param
    source = real_tokenizer(name)
    root = tmp_path_factory.mktemp(name)
    model_class, config_class, fields = DECODERS[name]
    torch.manual_seed(0)
    bos = {"bos_token_id": 128000} if name == "llama3" else {"bos_token_id": 151643}
    model_class(config_class(**SHAPE, **HEADS, **fields, **bos, pad_token_id=None)).save_pretrained(root / "language")
    for file in source.glob("*.json"):
        (root / "language" / file.name).write_bytes(file.read_bytes())
    folder = assemble(
        tiny_backbones.vision,
        root / "language",
        root / "checkpoint",
        fields=method_fields("norm-gwc"),
        chat_template=name,
    )
    processor = AutoProcessor.from_pretrained(folder)
    template = json.loads((source / "tokenizer_config.json").read_text())["chat_template"]
    return SimpleNamespace(
        name=name, source=source, folder=folder, processor=processor, tokenizer=processor.tokenizer, template=template
    )


@pytest.fixture(scope="module")
def generator(family):
    return load_generator(str(family.folder))


def tokenization(family, prompt_format="chat"):
    template = chat_template("plain") if prompt_format == "plain" else str(family.processor.chat_template)
    return LlavaTokens(family.tokenizer, template, IMAGE_ID[family.name], IMAGE_TOKENS, None)


def row(name):
    told, images = ROWS[name]
    return {"messages": messages_of(told, images), "images": ["x"] * images}


def answers(name):
    """The answers as they should be supervised; Qwen's tokenizer writes text in NFC."""
    return [turn["value"].strip() for turn in ROWS[name][0] if turn["from"] == "gpt"]


def in_nfc(text):
    return unicodedata.normalize("NFC", text)


def without(ids, part):
    """`ids` without the one place where `part` stands."""
    places = [i for i in range(len(ids)) if ids[i : i + len(part)] == part]
    assert len(places) == 1
    return ids[: places[0]] + ids[places[0] + len(part) :]


def own_ids(family, messages, **kwargs):
    """Tokens of the model's own template on a fixed date; an image is `<image>` and a line break in its text."""
    texts = [{**m, "content": "".join(part.get("text", "<image>\n") for part in m["content"])} for m in messages]
    encoded = family.tokenizer.apply_chat_template(
        texts, chat_template=family.template, date_string="26 Jul 2024", return_dict=True, **kwargs
    )
    return encoded["input_ids"]


def without_system_text(family, ids, messages):
    """`ids` of the model's own template without what it adds to a conversation."""
    given = messages[0]["role"] == "system"
    if given and family.name == "qwen2_5":
        return ids  # the default text is written only where none is given
    alone = DATES if given else THEIRS_ALONE[family.name]
    return without(ids, family.tokenizer.encode(alone, add_special_tokens=False))


def test_marks_of_the_chat_format_are_no_content(family):
    """They are special in the tokenizer's file, and Llama 3's are in none of its lists."""
    marks = {
        "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "qwen2_5": ["<|im_start|>", "<|im_end|>"],
    }
    ids = family.tokenizer.convert_tokens_to_ids([*marks[family.name], "Describe"])
    assert is_special(torch.tensor(ids), special_ids(family.tokenizer)).tolist() == [True] * (len(ids) - 1) + [False]


def check_bos(family, ids):
    bos = family.tokenizer.bos_token_id
    assert (bos is None) == (family.name == "qwen2_5")
    assert ids.count(128000) == (family.name == "llama3") and (bos is None or ids[0] == bos)


def test_the_tokenizer_is_the_one_of_the_file(family):
    reference = Tokenizer.from_file(str(family.source / "tokenizer.json"))
    for told, _ in ROWS.values():
        for text in (turn["value"].replace("<image>", "") for turn in told):
            for special in (True, False):
                expected = reference.encode(text, add_special_tokens=special).ids
                assert family.tokenizer.encode(text, add_special_tokens=special) == expected


def test_image_and_pad_token(family):
    tokenizer, config = family.tokenizer, AlignedLlavaConfig.from_pretrained(family.folder)
    assert tokenizer.encode("a<image>b", add_special_tokens=False).count(IMAGE_ID[family.name]) == 1
    assert tokenizer.encode("<image>", add_special_tokens=False) == [IMAGE_ID[family.name]]
    assert config.image_token_id == family.processor.image_token_id == IMAGE_ID[family.name]
    assert config.text_config.vocab_size % 64 == 0 and config.text_config.vocab_size > IMAGE_ID[family.name]
    generation = json.loads((family.folder / "generation_config.json").read_text())
    assert tokenizer.pad_token == PAD[family.name] and generation["pad_token_id"] == tokenizer.pad_token_id
    assert tokenizer.convert_tokens_to_ids(END[family.name]) in generation["eos_token_id"]
    assert set(DECODERS[family.name][2]["eos_token_id"]) <= set(generation["eos_token_id"])


@pytest.mark.parametrize("name", ROWS)
def test_stage_two_learns_the_answers_and_their_ends_in_the_models_own_template(family, name):
    messages = row(name)["messages"]
    (encoded,) = tokenization(family)([row(name)])
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    check_bos(family, ids)
    assert ids == without_system_text(family, own_ids(family, messages), messages)
    supervised = [family.tokenizer.decode(span) for span in spans(ids, mask)]
    assert [in_nfc(text) for text in supervised] == [in_nfc(answer) + END[family.name] for answer in answers(name)]
    assert ids.count(IMAGE_ID[family.name]) == ROWS[name][1]
    expanded, labels = expand(ids, mask, IMAGE_ID[family.name], IMAGE_TOKENS)
    assert expanded.count(IMAGE_ID[family.name]) == IMAGE_TOKENS * ROWS[name][1] and len(expanded) == encoded["length"]
    assert [t for t in labels if t != IGNORE_INDEX] == [t for span in spans(ids, mask) for t in span]
    # What is supervised after a prompt is what the model reads when it is asked.
    for number in (i for i, message in enumerate(messages) if message["role"] == "assistant"):
        prompt = family.tokenizer.apply_chat_template(
            messages[:number], chat_template=family.processor.chat_template, add_generation_prompt=True
        )["input_ids"]
        assert ids[: len(prompt)] == prompt and mask[len(prompt)] == 1


def test_stage_one_is_image_caption_end(family):
    (encoded,) = tokenization(family, "plain")([row("one turn")])
    ids, tokenizer = encoded["input_ids"], family.tokenizer
    check_bos(family, ids)
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    caption = tokenizer.encode("Two.", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids(END[family.name])
    assert ids == [*bos, IMAGE_ID[family.name], *caption, end]
    assert spans(ids, encoded["assistant_masks"]) == [[*caption, end]]


QUESTION = "What is on the left?\nA. a dog\nB. 2 cats \nAnswer with the letter."


@pytest.mark.parametrize("images", [0, 1, 2])
def test_the_evaluation_asks_as_the_model_was_trained(family, generator, images):
    prompt = generator.render(QUESTION, images)
    (ids,) = generator.tokenize([prompt], [[(30, 20)] * images])
    check_bos(family, ids)
    pictures = [Image.new("RGB", (30, 20), (9, 9, 200))] * images
    assert generator.inputs([prompt], [pictures])["input_ids"][0].tolist() == ids
    messages = messages_of(turns("<image>\n" * images + QUESTION, "A"), images)
    (trained,) = tokenization(family)([{"messages": messages, "images": ["x"] * images}])
    expanded, labels = expand(trained["input_ids"], trained["assistant_masks"], IMAGE_ID[family.name], IMAGE_TOKENS)
    assert ids == expanded[: len(ids)] and labels[len(ids)] != IGNORE_INDEX == labels[len(ids) - 1]
    theirs = without_system_text(family, own_ids(family, messages[:1], add_generation_prompt=True), messages[:1])
    assert [t for t in ids if t != IMAGE_ID[family.name]] == [t for t in theirs if t != IMAGE_ID[family.name]]


def test_answers_are_decoded_as_they_were_learned(family, generator):
    for name in ROWS:
        (encoded,) = tokenization(family)([row(name)])
        supervised = spans(encoded["input_ids"], encoded["assistant_masks"])
        assert generator._texts(supervised) == [family.tokenizer.decode(span[:-1]) for span in supervised]
        assert [in_nfc(text) for text in generator._texts(supervised)] == [in_nfc(answer) for answer in answers(name)]


def test_transformers_processor_asks_the_same(family, generator):
    image = Image.new("RGB", (30, 20), (9, 9, 200))
    chat = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": QUESTION}]}]
    inputs = family.processor.apply_chat_template(
        chat, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
    )
    ids = inputs["input_ids"][0].tolist()
    check_bos(family, ids)
    assert ids == generator.tokenize([generator.render(QUESTION, 1)], [[(30, 20)]])[0]
    assert ids.count(IMAGE_ID[family.name]) == IMAGE_TOKENS and len(inputs["pixel_values"]) == 1


def test_text_tasks_have_one_bos_with_and_without_the_chat_template(family):
    adapter = AlignedLlavaLM(pretrained=str(family.folder), batch_size=1)
    reference = Tokenizer.from_file(str(family.source / "tokenizer.json"))
    context, continuation = adapter._encode_pair("The capital of France is", " Paris")
    check_bos(family, context)
    assert context + continuation == reference.encode("The capital of France is Paris").ids
    assert adapter.tokenizer.decode(continuation) == " Paris"
    rendered = adapter.apply_chat_template([{"role": "user", "content": "Why?"}])
    ids = adapter.tok_encode(rendered)
    check_bos(family, ids)
    messages = [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]
    theirs = own_ids(family, messages, add_generation_prompt=True)
    assert ids == without_system_text(family, theirs, messages)
