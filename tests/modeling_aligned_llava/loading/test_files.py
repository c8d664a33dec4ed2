"""What is written is there whole, and is left alone where it says the same already."""

from modeling_aligned_llava.loading.files import write_text


def test_the_same_words_are_not_written_again(tmp_path):
    path = tmp_path / "folder/page.html"
    for text in ("plain", "an answer with a\rcarriage return\r\n and é"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
        before = path.stat()
        write_text(path, text)
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
