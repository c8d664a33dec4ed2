"""What goes wrong with a download is one line, which holds no key of a signed address."""

import pytest
from huggingface_hub.errors import HfHubHTTPError

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading import hub


@pytest.mark.parametrize("error", [HfHubHTTPError.__new__(HfHubHTTPError), OSError("a\nb"), ValueError("c")])
def test_what_the_client_raises_is_one_line_without_keys(error):
    error.args = (f"{error}\nfor url https://host/file?X-Signature=secret",)
    with pytest.raises(UserError) as raised, hub.hub_errors_named("cannot fetch it"):
        raise error
    text = str(raised.value)
    assert text.startswith(f"cannot fetch it: {type(error).__name__}: ") and "\n" not in text
    assert text.endswith("for url https://host/file") and "secret" not in text
