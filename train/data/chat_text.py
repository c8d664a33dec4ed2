"""A conversation as the text that a chat template writes, and in it the answers, each with the token that ends it.

Without the end token a model never learns to stop. Official templates leave it out of what {% generation %} marks
(LLaVA-OneVision) or write none (LLaVA-1.5).
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.chat_templates import Span, TemplateRefuses, marks_answers, rendered
from train.data.conversations import BadRow, text_of


_SAMPLE = [{"role": role, "content": [{"type": "text", "text": "a"}]} for role in ("user", "assistant")]


@dataclass(frozen=True)
class ChatText:
    """What a template makes of conversations.

    Args:
        tokenizer: names the end token, and those that text must not hold.
        template: its {% generation %} marks the answers; without marks, they are what it adds turn by turn.
    """

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
            text, answers, _ = self._ended(messages)
        except TemplateRefuses as error:
            raise BadRow("the chat template refuses it", error.why, filtered=True) from error
        written = [text_of([message]).strip() in text for message in messages[:2]]
        if messages[0]["role"] == "system" and written == [False, True]:  # `plain` writes no question either
            raise BadRow("the chat template drops the system turn", filtered=True)
        return text, answers

    def ending(self) -> str:
        """What ends an answer and where it comes from, as one line; empty if the template refuses the sample."""
        try:
            text, answers, origin = self._ended(_SAMPLE)
        except TemplateRefuses:
            return ""
        token = next((match[0] for match in self._added.finditer(text, answers[-1][0])), "") if answers else ""
        return f"end token of an answer: {token!r}, {origin}" if token else ""

    @cached_property
    def marked(self) -> bool:
        """Whether the template marks the answers."""
        return marks_answers(self.template)

    @property
    def _eos(self) -> str:
        if self.tokenizer.eos_token is None:
            raise UserError("the tokenizer has no end token (eos_token), so no model learns to end an answer")
        return str(self.tokenizer.eos_token)

    @cached_property
    def _added(self) -> re.Pattern:
        tokens = {str(token) for token in self.tokenizer.added_tokens_decoder.values()} | {
            str(self.tokenizer.eos_token)
        }
        return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))

    @cached_property
    def _prompt(self) -> str:
        """What the template writes to ask for an answer; empty if it refuses the sample."""
        try:
            before, asked = (self._render(_SAMPLE[:1], add_generation_prompt=prompt)[0] for prompt in (False, True))
        except TemplateRefuses:
            return ""
        return asked.removeprefix(before)

    def _render(self, messages: list[dict[str, Any]], **options: Any) -> tuple[str, list[Span]]:
        return rendered(self.tokenizer, self.template, messages, **options)

    def _ended(self, messages: list[dict[str, Any]]) -> tuple[str, list[Span], str]:
        if self.marked:
            text, marks = self._render(messages, return_assistant_tokens_mask=True)
            text, answers, origin = self._with_ends(text, [span for span in marks if text[slice(*span)].strip()])
        else:
            text, answers = self._turn_by_turn(messages)
            origin = "as the template writes it" if self._ends(text[: answers[-1][1]]) else ""
        if answers and not origin:
            start, end = answers[-1]
            text = text[:end] + self._eos
            answers[-1] = start, len(text)
            origin = "added after the last answer of a row, because the template writes none"
        return text, answers, origin

    def _ends(self, answer: str) -> bool:
        return answer.rstrip().endswith(self._special)

    @cached_property
    def _special(self) -> tuple[str, ...]:
        special = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        return (*special, self._eos)

    def _with_ends(self, text: str, marks: list[Span]) -> tuple[str, list[Span], str]:
        """The marked answers with the end tokens that follow them, behind the white space of the generation prompt."""
        following = self._added.match(text, _past_space(text, marks[-1][1])) if marks else None
        ends = {self._eos, following[0] if following else self._eos}
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
            origin = "as the template marks it" if self._ends(answer) else ""
            if follows is not None and not origin:
                written += text[at : behind + len(follows)]
                at = behind + len(follows)
                origin = "which the template writes behind the answer that it marks"
            answers.append((begin, len(written)))
        return written + text[at:], answers, origin

    def _turn_by_turn(self, messages: list[dict[str, Any]]) -> tuple[str, list[Span]]:
        """What the template adds with each answer."""
        text, _ = self._render(messages)
        answers: list[Span] = []
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            asked, _ = self._render(messages[:turn], add_generation_prompt=True)
            answered, _ = self._render(messages[: turn + 1])
            if not (text.startswith(answered) and answered.startswith(asked)):
                raise UserError(
                    "the chat template changes what it wrote for earlier turns, so the answers cannot be found in it: "
                    "save the processor with one that marks them with {% generation %}"
                )
            answers.append((len(asked), len(answered.rstrip())))
        return text, answers


def _past_space(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())
