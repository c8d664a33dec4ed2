"""The page of the demo (gradio): pick or upload a picture, ask, and see up to three models beside each other.

Uploads come as files, never as gr.Image: that would decode a picture of any size before its size can be judged.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any, NoReturn

import gradio as gr

from eval.data.image_sample import QUESTION, SUFFIXES, ImageQuestion
from eval.demo import markup
from eval.demo.arms import Answer, Arm
from eval.demo.looking import look, norm_figure, norms, overlay, preview
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import CONTROL_CHARACTERS
from modeling_aligned_llava.loading.images import open_image


HEAD = """# Same picture, same question

What each model answers, where it looks when it says a word, and how long its visual tokens are beside text
([The Unseen Bias](https://arxiv.org/abs/2512.08374))."""
NORMS = """Left to right: one model each, one scale. Above: the mean L2 norm of the tokens that enter each layer.
Below: how far a layer turns them (1 - cosine). One picture, so there is no interval."""
LOOKED = "{share:.0%} of the attention is on the picture when {arm} says “{word}” (mean over layers and heads)."
MAPPED = " Bright is much of it."
NO_MAP = " Its visual tokens are no single grid, so there is no map."
# Gradio's own orange and grey are too pale to read on white.
THEME = gr.themes.Default(primary_hue="indigo").set(button_primary_background_fill="*primary_600")
STYLE = "#upload .or { color: inherit }"
QUESTION_LENGTH = 1000
LARGEST_UPLOAD = "50mb"


def build(arms: list[Arm], examples: list[ImageQuestion], most: int) -> gr.Blocks:
    """The page for these models.

    Args:
        arms: one to three models.
        examples: pictures to pick, each with a question.
        most: tokens that an answer may have.
    """
    with gr.Blocks(title="Norm-aligned LLaVA", analytics_enabled=False, delete_cache=(3600, 86400)) as page:
        gr.Markdown(HEAD)
        picture, asked = gr.State(), gr.State()
        with gr.Row():
            with gr.Column():
                upload = gr.File(label="Upload a picture", file_types=sorted(SUFFIXES), height=120, elem_id="upload")
                if examples:
                    thumbnails = [(preview(each), each.question) for each in examples]
                    gallery = gr.Gallery(
                        thumbnails,
                        label="Or pick one",
                        columns=4,
                        height=260,
                        allow_preview=False,
                        buttons=[],
                        elem_id="examples",
                    )
            with gr.Column():
                shown = gr.HTML(elem_id="picture")
                question = gr.Textbox(QUESTION, label="Question", max_length=QUESTION_LENGTH, elem_id="question")
                ask = gr.Button("Ask", variant="primary", elem_id="ask")
        started = gr.on([ask.click, question.submit], _begin, [picture, question], asked)
        with gr.Row():
            for number, arm in enumerate(arms):
                with gr.Column():
                    _arm_column(arm, number, started, asked, most)
        with gr.Accordion("Norms of this picture", open=True):
            gr.Markdown(NORMS)
            figure = gr.HTML(elem_id="norms")
        started.success(partial(_norms, arms), asked, figure)

        upload.upload(_open_upload, upload, [picture, shown]).failure(
            lambda: [None] * 3, None, [upload, picture, shown]
        )
        if examples:

            def pick(chosen: gr.SelectData) -> tuple[ImageQuestion, str, str, None]:  # gradio goes by the annotation
                found = examples[chosen.index]
                return found, _shown(found), found.question, None

            gallery.select(pick, None, [picture, shown, question, upload])
    return page


def serve(page: gr.Blocks, port: int | None = None) -> None:
    """Show the page on this machine until Ctrl-C; the address is printed.

    Raises:
        UserError: the port is taken.
    """
    try:
        _, address, _ = page.launch(
            server_port=port,
            max_file_size=LARGEST_UPLOAD,
            footer_links=[],
            theme=THEME,
            css=STYLE,
            run_history=False,
            quiet=True,
            prevent_thread_lock=True,
        )
    except OSError as error:
        raise UserError(f"--port {port or '7860-7959'}: not free; choose another") from error
    print(f"The demo is at {address} (Ctrl-C ends it)", flush=True)  # noqa: T201
    page.block_thread()


def _arm_column(arm: Arm, number: int, started: Any, asked: gr.State, most: int) -> None:
    """One model: its answer, the words of it to choose from, and the picture under the attention of the chosen one."""
    gr.Markdown(f"## {arm.name}")
    said = gr.Textbox(label="Answer", lines=2, interactive=False, elem_id=f"answer-{number}")
    answer = gr.State()
    words = gr.Radio([], label="Where it looks when it says", visible=False, elem_id=f"words-{number}")
    looked = gr.HTML(elem_id=f"overlay-{number}")
    answered = started.success(partial(_answer, arm, most), asked, [said, answer, words, looked])
    for event in (answered.success, words.input):
        event(partial(_look, arm), [answer, words], looked)


def _shown(picture: ImageQuestion) -> str:
    return markup.picture(preview(picture), "The picture that is asked about", height="260px")


def _open_upload(path: str) -> tuple[ImageQuestion, str]:
    found = ImageQuestion("upload", partial(open_image, path, "The picture"))
    try:
        return found, _shown(found)
    except UserError as error:
        _refuse(str(error))


def _begin(picture: ImageQuestion | None, question: str) -> ImageQuestion:
    """What is asked, for all models alike."""
    if picture is None:
        _refuse("Upload a picture, or pick one, before you ask.")
    if not question.strip():
        _refuse("Type a question before you ask.")
    return replace(picture, question=question)


def _answer(arm: Arm, most: int, asked: ImageQuestion) -> Iterator[tuple[str, Answer | None, Any, Any]]:
    """The answer word by word, then its words to choose from; what is left of the last answer goes."""
    yield "", None, gr.update(visible=False), ""
    try:
        for answer in arm.stream(asked, most):
            yield CONTROL_CHARACTERS.sub("", answer.text), None, gr.skip(), gr.skip()
        words = arm.words(answer)
    except Exception as error:  # whatever a model can raise is said; the page and the other models go on
        _refuse(f"{arm.name}: {' '.join(str(error).split())}", error)
    choices = [(word, number) for number, (word, _) in enumerate(words)]
    yield (
        CONTROL_CHARACTERS.sub("", answer.text) or "(no answer)",
        answer,
        gr.update(choices=choices, value=0 if words else None, visible=bool(words)),
        gr.skip(),
    )


def _look(arm: Arm, answer: Answer, chosen: int) -> str:
    """The picture under the attention of a word, and the share of it that is on the picture."""
    words = arm.words(answer)
    if not words:
        return ""
    word, first_token = words[chosen]
    try:
        seen = look(arm, answer, first_token)
        drawn = preview(answer.picture) if seen.map is None else overlay(answer.picture, seen.map)
    except Exception as error:
        _refuse(f"{arm.name}: {' '.join(str(error).split())}", error)
    said = LOOKED.format(share=seen.share, arm=arm.name, word=word) + (NO_MAP if seen.map is None else MAPPED)
    return markup.picture(drawn, f"The picture as {arm.name} attends to it for “{word}”", said)


def _norms(arms: list[Arm], asked: ImageQuestion) -> str:
    """The norms of all models that can be measured; the others are named."""
    profiles = {}
    for arm in arms:
        try:
            profiles[arm.name] = norms(arm, asked)
        except Exception as error:
            gr.Warning(escape(f"No norms of {arm.name}: {' '.join(str(error).split())}"))
    return markup.norms(norm_figure(profiles), profiles) if profiles else ""


def _refuse(message: str, cause: Exception | None = None) -> NoReturn:
    """Tell the person in front of the page, who may have typed or named what is in `message`."""
    expected = cause is None or isinstance(cause, UserError)
    raise gr.Error(escape(message), print_exception=not expected) from cause
