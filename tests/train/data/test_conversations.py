"""Turns become messages."""

from train.data.conversations import messages_of


def test_answers_lose_the_white_space_around_them():
    """A leading line break would join that of ChatML's header in one token, after which no prompt ends."""
    turns = [{"from": "human", "value": " What?\n"}, {"from": "gpt", "value": "\n\n a  dog \n"}]
    question, answer = messages_of(turns, 0)
    assert question["content"] == [{"type": "text", "text": " What?\n"}]
    assert answer["content"] == [{"type": "text", "text": "a  dog"}]
