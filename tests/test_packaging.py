"""The wheel holds the plugin alone, with the methods and chat templates it reads."""

import subprocess
import sys
import zipfile

from tests import REPOSITORY


def test_wheel_has_one_top_level_package_and_works_from_it(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)  # noqa: S603
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"modeling_aligned_llava"}
    assert {"modeling_aligned_llava/py.typed", "modeling_aligned_llava/chat_templates/plain.jinja"} <= set(names)
    program = "import modeling_aligned_llava as m; print(m.__file__, m.method_names()[0])"
    env = {"PYTHONPATH": str(tmp_path / "site"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)  # noqa: S603
    assert done.stdout.split() == [str(tmp_path / "site/modeling_aligned_llava/__init__.py"), "baseline"], done.stderr
