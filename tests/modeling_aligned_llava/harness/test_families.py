"""The lmms-eval adapter on stock checkpoints of other families: batched answers are those of one row at a time."""

import copy

import pytest
import torch
import transformers as hf

from modeling_aligned_llava.inference.generator import CONTROL_CHARACTERS, load_generator
from tests.benchmark_stand_in import CHAT_TEMPLATE, mixed_rows, text_config, tokenizer
from tests.modeling_aligned_llava.harness.test_lmms_eval_model import adapter, requests
from tests.modeling_aligned_llava.tiny_families import MROPE, QWEN_VISION, VISION


ROWS = mixed_rows(10)
QWEN_TOKENS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
SQUARE = {"height": 28, "width": 28}
PINPOINTS = [[28, 28], [56, 28]]


def write_llava_next(words):
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**VISION),
        text_config=text_config(words),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=PINPOINTS,
    )
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": 28}, crop_size=SQUARE, image_grid_pinpoints=PINPOINTS, do_center_crop=True
    )
    processor = hf.LlavaNextProcessor(
        images,
        words,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    return hf.LlavaNextForConditionalGeneration(config), processor


def write_llava_onevision(words):
    words.add_special_tokens({"additional_special_tokens": ["<image>", "<video>"]}, replace_extra_special_tokens=False)
    config = hf.LlavaOnevisionConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=text_config(words),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        video_token_index=words.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=PINPOINTS,
    )
    processor = hf.LlavaOnevisionProcessor(
        hf.LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=PINPOINTS),
        words,
        hf.LlavaOnevisionVideoProcessor(size=SQUARE),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
    )
    return hf.LlavaOnevisionForConditionalGeneration(config), processor


def write_qwen2_5_vl(words):
    words.add_special_tokens({"additional_special_tokens": QWEN_TOKENS})
    image, video, start, end = (words.convert_tokens_to_ids(token) for token in QWEN_TOKENS)
    text = text_config(words).to_dict() | {"rope_parameters": MROPE}
    vision = QWEN_VISION | {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 32}
    config = hf.Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision | {"window_size": 28, "fullatt_block_indexes": [1]},
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
    )
    sizes = {"patch_size": 7, "min_pixels": 28 * 28, "max_pixels": 56 * 56}
    processor = hf.Qwen2_5_VLProcessor(
        hf.Qwen2VLImageProcessor(**sizes),
        words,
        hf.Qwen2VLVideoProcessor(**sizes),
        chat_template=CHAT_TEMPLATE.replace("<image>\n", "<|vision_start|><|image_pad|><|vision_end|>"),
    )
    return hf.Qwen2_5_VLForConditionalGeneration(config), processor


WRITERS = {"llava_next": write_llava_next, "llava_onevision": write_llava_onevision, "qwen2_5_vl": write_qwen2_5_vl}


@pytest.fixture(scope="module", params=list(WRITERS))
def checkpoint(request, tmp_path_factory):
    torch.manual_seed(0)
    model, processor = WRITERS[request.param](tokenizer())
    folder = tmp_path_factory.mktemp(request.param) / "tiny"
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_answers_are_the_models_own_whatever_the_batch(checkpoint):
    generator = load_generator(str(checkpoint), "float32")
    assert generator.tree is None  # images of many sizes are batched, without shared prefixes
    expected = []
    for text, images in ROWS:
        prompt = generator.render(text, len(images))
        inputs = generator.processor(
            text=[prompt], images=copy.copy(images) or None, return_tensors="pt", add_special_tokens=False
        )
        ids = generator.model.generate(**inputs, max_new_tokens=6)[0, inputs["input_ids"].shape[1] :]
        text = CONTROL_CHARACTERS.sub("", generator.processor.decode(ids, skip_special_tokens=True))
        expected.append(text.split("\n\n")[0])
    assert len(set(expected)) > len(ROWS) // 2
    for batch_size in (1, 4, 16):
        model = adapter(checkpoint, batch_size=batch_size)
        assert model.generate_until(requests(ROWS)) == expected
