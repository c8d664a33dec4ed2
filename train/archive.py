"""Extract a zip of images without letting it write outside its folder; started again, it resumes."""

import shutil
import stat
import zlib
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile, ZipInfo

from tqdm import tqdm

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.disk_errors import disk_errors_named
from modeling_aligned_llava.loading.hub_dataset import require_space


_BLOCK = 4096  # bytes that a file system allots at least


def extract_zip(archive: Path, folder: Path) -> None:
    """Extract all files to `folder`, except those that are there in full. No file grows beyond its size in the zip.

    Raises:
        UserError: the zip is damaged, a name leaves the folder or is a link, or the disk is too small. Nothing is
            extracted if a name or the disk is at fault.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ZipFile(archive) as zipped:
            members = [member for member in zipped.infolist() if not member.is_dir()]
            for member in members:
                _check_name(archive, member)
            left = [member for member in members if not _is_there(folder / member.filename, member.file_size)]
            needed = sum(-(-member.file_size // _BLOCK) * _BLOCK for member in left)
            tqdm.write(
                require_space(folder, needed, f"{len(left):,} of {len(members):,} files of {archive.name} to extract")
            )
            total = sum(member.file_size for member in left)
            with tqdm(total=total, unit="B", unit_scale=True, desc=f"extracting {archive.name}", disable=None) as bar:
                for member in left:
                    with disk_errors_named(folder / member.filename):
                        _extract(zipped, member, folder / member.filename)
                    bar.update(member.file_size)
    except (BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # the last one: encrypted
        raise UserError(f"{archive} cannot be extracted: {' '.join(str(error).split())}") from error


def _check_name(archive: Path, member: ZipInfo) -> None:
    path = PurePosixPath(member.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
        raise UserError(f"{archive}: {member.filename!a} leaves the folder; nothing was extracted")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise UserError(f"{archive}: {member.filename!a} is a link; nothing was extracted")


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _extract(zipped: ZipFile, member: ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipped.open(member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)
    except BaseException:
        target.unlink(missing_ok=True)  # it may have its full size already, yet the wrong content
        raise
