"""A conversation as the text that a chat template writes, and in it the answers, each with the token that ends it.

Without the end token a model never learns to stop. Official templates leave it out of what {% generation %} marks
(LLaVA-OneVision) or write none (LLaVA-1.5).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.chat_templates import Span, TemplateRefuses, marks_answers, rendered
from train.data.row import BadRow


_SAMPLE = [{"role": role, "content": [{"type": "text", "text": "a"}]} for role in ("user", "assistant")]


@dataclass(frozen=True)
class ChatText:
    """What a template makes of conversations: it marks the answers, or they are what it adds turn by turn."""

    tokenizer: PreTrainedTokenizerBase
    template: str

    def __call__(self, messages: list[dict[str, Any]]) -> tuple[str, list[Span]]:
        """The text, and the characters of the answers with their end tokens.

        An end token that the template writes behind a marked answer is supervised too. If none follows the last
        answer, the text ends there with the tokenizer's. White space before a marked answer is that of the generation
        prompt, and what the model has to write itself is supervised.

        Raises:
            BadRow: the template does not take the conversation.
            UserError: it rewrites earlier turns, so that answers cannot be found.
        """
        try:
            return self._ended(messages)[:2]
        except TemplateRefuses as error:
            raise BadRow("the chat template refuses it", error.why, filtered=True) from error

    def ending(self) -> tuple[str, str] | None:
        """The token that ends an answer, and where it comes from; None if the template refuses the sample."""
        try:
            text, answers, origin = self._ended(_SAMPLE)
        except TemplateRefuses:
            return None
        answer = text[slice(*answers[-1])].rstrip()
        token = max((token for token in self._added if answer.endswith(token)), key=len)
        return token, origin

    @cached_property
    def marked(self) -> bool:
        """Whether the template marks the answers."""
        return marks_answers(self.template)

    @cached_property
    def _added(self) -> dict[str, bool]:
        """The tokens that are no text, and whether each is special."""
        added = {token.content: token.special for token in self.tokenizer.added_tokens_decoder.values()}
        return added | ({str(self.tokenizer.eos_token): True} if self.tokenizer.eos_token else {})

    @cached_property
    def _special(self) -> tuple[str, ...]:
        return tuple(token for token, special in self._added.items() if special)

    @cached_property
    def _prompt(self) -> str:
        """What the template writes to ask for an answer; empty if it refuses the sample."""
        try:
            before, asked = (
                rendered(self.tokenizer, self.template, _SAMPLE[:1], add_generation_prompt=prompt)[0]
                for prompt in (False, True)
            )
        except TemplateRefuses:
            return ""
        return asked.removeprefix(before)

    def _ended(self, messages: list[dict[str, Any]]) -> tuple[str, list[Span], str]:
        if self.marked:
            text, marks = rendered(self.tokenizer, self.template, messages, return_assistant_tokens_mask=True)
            text, answers, origin = self._with_ends(text, [span for span in marks if text[slice(*span)].strip()])
        else:
            text, answers = self._turn_by_turn(messages)
            origin = "as the template writes it" if text[: answers[-1][1]].endswith(self._special) else ""
        if not origin:
            start, end = answers[-1]
            if self.tokenizer.eos_token is None:
                raise UserError("neither the chat template nor the tokenizer (eos_token) ends an answer")
            text = text[:end] + str(self.tokenizer.eos_token)
            answers[-1] = start, len(text)
            origin = "added after the last answer of a row, because the template writes none"
        return text, answers, origin

    def _with_ends(self, text: str, marks: list[Span]) -> tuple[str, list[Span], str]:
        """The marked answers with the end tokens that follow them, behind the white space of the generation prompt."""
        if not marks:
            raise UserError("the chat template marks no supervised tokens")
        tail = text[_past_space(text, marks[-1][1]) :]
        ends = [token for token in self._added if tail.startswith(token) or token == self.tokenizer.eos_token]
        header = self._prompt.rstrip()
        space = self._prompt[len(header) :]
        written, at, origin = "", 0, ""
        answers: list[Span] = []
        for start, end in marks:
            begin = _past_space(text, start)
            before, answer = text[at:begin], text[start:end].strip()
            head = before.rstrip()
            gap = before[len(head) :]
            at = begin + len(answer)
            begin = len(written) + len(before)
            if header and head.endswith(header):
                gap = gap if gap.startswith(space) else space
                begin = len(written) + len(head) + len(space)
            written += head + gap + answer
            behind = _past_space(text, at)
            follows = next((token for token in ends if text.startswith(token, behind)), None)
            origin = "as the template marks it" if answer.endswith(self._special) else ""
            if follows is not None and not origin:
                written += text[at : behind + len(follows)]
                at = behind + len(follows)
                origin = "which the template writes behind the answer that it marks"
            answers.append((begin, len(written)))
        return written + text[at:], answers, origin

    def _turn_by_turn(self, messages: list[dict[str, Any]]) -> tuple[str, list[Span]]:
        """What the template adds with each answer."""
        text, _ = rendered(self.tokenizer, self.template, messages)
        answers: list[Span] = []
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            asked, _ = rendered(self.tokenizer, self.template, messages[:turn], add_generation_prompt=True)
            answered, _ = rendered(self.tokenizer, self.template, messages[: turn + 1])
            if not (text.startswith(answered) and answered.startswith(asked)):
                raise UserError(
                    "the chat template changes what it wrote for earlier turns, so the answers cannot be found in it: "
                    "save the processor with one that marks them with {% generation %}"
                )
            answers.append((len(asked), len(answered.rstrip())))
        return text, answers


def _past_space(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())
