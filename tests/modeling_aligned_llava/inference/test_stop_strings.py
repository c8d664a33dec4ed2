"""Stop strings end an answer where they stand, but an empty line before it ends nothing."""

import pytest

from modeling_aligned_llava.inference.stop_strings import GrowingAnswer, Stops, cut
from tests.conftest import tiny_tokenizer


@pytest.mark.parametrize(
    ("answer", "stops", "expected"),
    [
        ("A\n\nbecause", ["\n\n"], "A"),
        ("\n\nA\n\nbecause", ["\n\n"], "\n\nA"),
        ("A", ["\n\n"], "A"),
        ("yes, ASSISTANT: no\n\n", ["\n\n", "ASSISTANT:"], "yes, "),
        ("ASSISTANT: yes", ["ASSISTANT:"], ""),
        ("A", ["", "B"], "A"),
        ("\n \n", ["\n"], "\n \n"),
    ],
)
def test_an_answer_ends_at_its_first_stop_string(answer, stops, expected):
    assert cut(answer, stops) == expected


@pytest.mark.parametrize("stops", [["\n\n"], ["USER:", "\n"], ["ü."], []])
@pytest.mark.parametrize("text", ["\n\nSo it is:\n\nA. USER: und für ü. x", " \n  a", "\n\n", "USER", "ab ü.\n\nx"])
def test_tokens_reach_a_stop_string_with_its_last_byte(text, stops):
    tokenizer = tiny_tokenizer()
    answer = GrowingAnswer(Stops(tokenizer, stops))
    reached = [answer.append(token) for token in tokenizer(text)["input_ids"]]
    written = [tokenizer.decode(answer.tokens[:end]) for end in range(1, len(reached) + 1)]
    first = next((index for index, part in enumerate(written) if cut(part, stops) != part), None)
    assert (reached.index(True) if True in reached else None) == first
