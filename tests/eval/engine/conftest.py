import tempfile
from unittest.mock import patch

import pytest

from eval.engine.pool import open_pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Two slots, where the folder of temporary files has too long a name for sockets."""
    with patch.object(tempfile, "tempdir", str(tmp_path_factory.mktemp("long" * 20))), open_pool(2, "cpu") as pool:
        yield pool
