"""Attempts at the Hub: how many, after which errors, and how long between them."""

from types import SimpleNamespace

import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading import hub_retries
from modeling_aligned_llava.loading.hub_retries import WAITS, Damaged, with_retries


def answered(status, **headers):
    error = HfHubHTTPError.__new__(HfHubHTTPError)
    Exception.__init__(error, f"{status} for url https://host/file?X-Signature=secret")
    error.response = SimpleNamespace(status_code=status, headers={k.replace("_", "-"): v for k, v in headers.items()})
    return error


@pytest.fixture
def attempt(monkeypatch):
    """`attempt(*errors)` -> the seconds waited until the work succeeds after these errors."""
    waited = []
    monkeypatch.setattr(hub_retries.time, "sleep", waited.append)

    def attempt(*errors):
        left = list(errors)

        def work():
            if left:
                raise left.pop(0)
            return "done"

        assert with_retries(work, "cannot fetch it") == "done"
        return waited

    attempt.waited = waited
    return attempt


@pytest.mark.parametrize("error", [Damaged("half"), TimeoutError(), ConnectionResetError(104, "reset"), answered(503)])
def test_short_trouble_is_survived(attempt, error):
    assert attempt(error, error) == list(WAITS[:2])


def test_lasting_trouble_ends_in_one_line(attempt):
    with pytest.raises(UserError) as raised:
        attempt(*[answered(500)] * 99)
    assert attempt.waited == list(WAITS)
    text = str(raised.value)
    assert text.startswith("cannot fetch it: HfHubHTTPError: 500") and "5 attempts failed" in text
    assert "\n" not in text and "secret" not in text


def test_a_busy_hub_is_left_alone_as_long_as_it_asks(attempt):
    assert attempt(answered(429, Retry_After="30")) == [30]
    with pytest.raises(UserError, match="it asks to wait 3600 s"):
        attempt(answered(429, Retry_After="3600"))


@pytest.mark.parametrize(
    "error",
    [
        *(answered(401), answered(404), OfflineModeIsEnabled("offline"), ValueError("a bug"), UserError("mine")),
        OSError(28, "No space left on device"),
    ],
)
def test_what_does_not_pass_is_not_tried_again(attempt, error):
    with pytest.raises(UserError):
        attempt(error)
    assert attempt.waited == []
