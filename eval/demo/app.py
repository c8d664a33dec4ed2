"""The page of the demo (gradio): choose or upload an image, ask, and compare up to three models side by side.

Uploads arrive as files, never as gr.Image, which would decode an image of any size before its size can be checked.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any, NoReturn

import gradio as gr

from eval.demo import markup
from eval.demo.measurements import norm_figure, norms, overlay, preview, word_attention
from eval.demo.models import Answer, DemoModel
from modeling_aligned_llava.diagnostics.images import QUESTION, SUFFIXES, ImageQuestion
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import CONTROL_CHARACTERS
from modeling_aligned_llava.loading.images import open_image


HEAD = """# Same image, same question

Each model's answer, its attention at each word, and the norms of its visual tokens and of text
([The Unseen Bias](https://arxiv.org/abs/2512.08374))."""
NORMS = """One column per model, on one scale. Top: the mean L2 norm of the tokens that enter each layer.
Bottom: how far each layer rotates them, in degrees. From a single image, so there is no interval."""
ATTENTION = "{share:.0%} of the attention is on the image when {model} says “{word}” (mean over layers and heads)."
MAP = " Brighter cells get more."
NO_MAP = " Its visual tokens do not form a single grid, so there is no map."
# Gradio's own orange and grey have too little contrast on white.
THEME = gr.themes.Default(primary_hue="indigo").set(button_primary_background_fill="*primary_600")
STYLE = "#upload .or { color: inherit }"
QUESTION_LENGTH = 1000
LARGEST_UPLOAD = "50mb"


def build(models: list[DemoModel], examples: list[ImageQuestion], max_new_tokens: int) -> gr.Blocks:
    """The page for one to three models.

    Args:
        examples: images to choose from, each with a question.
    """
    with gr.Blocks(title="Norm-aligned LLaVA", analytics_enabled=False, delete_cache=(3600, 86400)) as page:
        gr.Markdown(HEAD)
        image, asked = gr.State(), gr.State()
        with gr.Row():
            with gr.Column():
                upload = gr.File(label="Upload an image", file_types=sorted(SUFFIXES), height=120, elem_id="upload")
                if examples:
                    thumbnails = [(preview(each), each.question) for each in examples]
                    gallery = gr.Gallery(
                        thumbnails,
                        label="Or choose one",
                        columns=4,
                        height=260,
                        allow_preview=False,
                        buttons=[],
                        elem_id="examples",
                    )
            with gr.Column():
                shown = gr.HTML(elem_id="image")
                question = gr.Textbox(QUESTION, label="Question", max_length=QUESTION_LENGTH, elem_id="question")
                ask = gr.Button("Ask", variant="primary", elem_id="ask")
        started = gr.on([ask.click, question.submit], _begin, [image, question], asked)
        with gr.Row():
            for number, model in enumerate(models):
                with gr.Column():
                    _model_column(model, number, started, asked, max_new_tokens)
        with gr.Accordion("Norms of this image", open=True):
            gr.Markdown(NORMS)
            figure = gr.HTML(elem_id="norms")
        started.success(partial(_norms, models), asked, figure)

        upload.upload(_open_upload, upload, [image, shown]).failure(lambda: [None] * 3, None, [upload, image, shown])
        if examples:

            def pick(chosen: gr.SelectData) -> tuple[ImageQuestion, str, str, None]:  # gradio reads the annotation
                found = examples[chosen.index]
                return found, _shown(found), found.question, None

            gallery.select(pick, None, [image, shown, question, upload])
    return page


def serve(page: gr.Blocks, port: int | None = None) -> None:
    """Serve the page until Ctrl-C, and print its address. Only this machine can reach it, unless GRADIO_SERVER_NAME
    names another interface; it is never shared through a tunnel.

    Raises:
        UserError: the port is taken.
    """
    try:
        _, address, _ = page.launch(
            server_port=port,
            share=False,
            mcp_server=False,
            max_file_size=LARGEST_UPLOAD,
            footer_links=[],
            theme=THEME,
            css=STYLE,
            run_history=False,
            quiet=True,
            prevent_thread_lock=True,
        )
    except OSError as error:
        raise UserError(f"--port {port or '7860-7959'}: already in use; choose another") from error
    print(f"The demo is at {address} (Ctrl-C ends it)", flush=True)  # noqa: T201
    page.block_thread()


def _model_column(model: DemoModel, number: int, started: Any, asked: gr.State, max_new_tokens: int) -> None:
    """One model: its answer, the words to choose from, and the image under the attention of the chosen word."""
    gr.HTML(markup.heading(model.name))
    text = gr.Textbox(label="Answer", lines=2, interactive=False, elem_id=f"answer-{number}")
    answer = gr.State()
    words = gr.Radio([], label="Attention when it says", visible=False, elem_id=f"words-{number}")
    attention = gr.HTML(elem_id=f"overlay-{number}")
    answered = started.success(partial(_answer, model, max_new_tokens), asked, [text, answer, words, attention])
    for event in (answered.success, words.input):
        event(partial(_attention, model), [answer, words], attention)


def _shown(asked: ImageQuestion) -> str:
    return markup.figure(preview(asked), "The image that the question is about", height="260px")


def _open_upload(path: str) -> tuple[ImageQuestion, str]:
    found = ImageQuestion("upload", partial(open_image, path, "The image"))
    try:
        return found, _shown(found)
    except UserError as error:
        _refuse(str(error))


def _begin(image: ImageQuestion | None, question: str) -> ImageQuestion:
    """The image with the question, the same for all models."""
    if image is None:
        _refuse("Upload or choose an image first.")
    if not question.strip():
        _refuse("Type a question first.")
    return replace(image, question=question)


def _answer(
    model: DemoModel, max_new_tokens: int, asked: ImageQuestion
) -> Iterator[tuple[str, Answer | None, Any, Any]]:
    """Clear the previous answer, stream the new one, then offer its words to choose from."""
    yield "", None, gr.update(visible=False), ""
    try:
        for answer in model.stream(asked, max_new_tokens):
            yield CONTROL_CHARACTERS.sub("", answer.text), None, gr.skip(), gr.skip()
        words = model.words(answer)
    except Exception as error:  # whatever a model raises is shown; the page and the other models keep working
        _refuse(f"{model.name}: {' '.join(str(error).split())}", error)
    choices = [(word, number) for number, (word, _) in enumerate(words)]
    yield (
        CONTROL_CHARACTERS.sub("", answer.text) or "(no answer)",
        answer,
        gr.update(choices=choices, value=0 if words else None, visible=bool(words)),
        gr.skip(),
    )


def _attention(model: DemoModel, answer: Answer, chosen: int) -> str:
    """The image lit by the attention at a word, and the image's share of that attention."""
    words = model.words(answer)
    if not words:
        return ""
    word, first_token = words[chosen]
    try:
        found = word_attention(model, answer, first_token)
        drawn = preview(answer.asked) if found.map is None else overlay(answer.asked, found.map)
    except Exception as error:
        _refuse(f"{model.name}: {' '.join(str(error).split())}", error)
    caption = ATTENTION.format(share=found.share, model=model.name, word=word) + (NO_MAP if found.map is None else MAP)
    return markup.figure(drawn, f"Attention of {model.name} to the image at “{word}”", caption)


def _norms(models: list[DemoModel], asked: ImageQuestion) -> str:
    """The norms of all models that can be measured, with a warning for each of the others."""
    profiles = {}
    for model in models:
        try:
            profiles[model.name] = norms(model, asked)
        except Exception as error:
            gr.Warning(escape(f"No norms of {model.name}: {' '.join(str(error).split())}"))
    return markup.norms(norm_figure(profiles), profiles) if profiles else ""


def _refuse(message: str, cause: Exception | None = None) -> NoReturn:
    """Show an error on the page. `message` may hold text from users or models, so it is escaped."""
    expected = cause is None or isinstance(cause, UserError)
    raise gr.Error(escape(message), print_exception=not expected) from cause
