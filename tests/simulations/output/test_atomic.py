"""A file is whole or not there, and as private as the process that writes it wants its files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from simulations.errors import UserError
from simulations.output.atomic import check_writable, local_path, staged, whole
from simulations.run.journal import started
from tests.support.commands import refused
from tests.support.modes import nothing_narrowed, wider


@pytest.mark.parametrize(
    ("mask", "before", "mode"),
    [(0o077, None, 0o600), (0o022, None, 0o644), (0o022, 0o600, 0o600), (0o022, 0o666, 0o666)],
)
def test_the_umask_says_who_reads_a_new_file_and_an_existing_one_keeps_mode_and_content_until_all_is_written(
    tmp_path: Path, mask: int, before: int | None, mode: int
) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(b"before")
        path.chmod(before)
    usual = os.umask(mask)
    try:
        with pytest.raises(RuntimeError), whole(path) as file:
            file.write(b"half")
            raise RuntimeError
        assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if before is None else [b"before"])
        with whole(path, synced=True) as file:
            file.write(b"after")
            (draft,) = {*tmp_path.iterdir()} - {path}
            assert stat.S_IMODE(draft.stat().st_mode) == mode
    finally:
        os.umask(usual)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"after"] and stat.S_IMODE(path.stat().st_mode) == mode


def test_an_error_names_the_file_that_was_to_be(tmp_path: Path) -> None:
    """And not the hidden one beside it. Into a folder that is a file not even the superuser can write."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as caught, whole(tmp_path / "file" / "figure.png"):
        raise AssertionError
    assert caught.value.filename == str(tmp_path / "file" / "figure.png")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught, whole(tmp_path / "folder") as file:
        file.write(b"whole")
    assert caught.value.filename == str(tmp_path / "folder")
    check_writable(tmp_path)
    with pytest.raises(UserError, match=r"file: cannot be written: Not a directory$"):
        check_writable(tmp_path / "file")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    Path("link").symlink_to("fifo")
    for name in ("fifo", "link"):
        with pytest.raises(UserError, match=rf"^{name}: is no regular file; name a file$"), whole(Path(name)):
            raise AssertionError
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "link"] and stat.S_ISFIFO(os.stat("fifo").st_mode)


def test_a_symbolic_link_is_followed_and_stays(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for name in ("file", "run", "study"):
        (tmp_path / name).symlink_to(there / name)  # dangling
    for _ in range(2):
        with whole(tmp_path / "file") as file:
            file.write(b"content")
    with staged(tmp_path / "run") as part:
        (part / "a").write_text("1")
    (there / "study").mkdir()  # empty
    with started(tmp_path / "study") as part:
        (part / "a").write_text("1")
    assert all((tmp_path / name).is_symlink() for name in ("file", "run", "study"))
    assert sorted(p.name for p in there.iterdir()) == ["file", "run", "study"]
    assert (there / "file").read_bytes() == b"content" and (there / "run" / "a").exists()
    assert (there / "study" / "a").exists()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="loop") as caught, whole(tmp_path / "loop"):
        raise AssertionError
    assert caught.value.filename == str(tmp_path / "loop")


def test_what_is_private_is_its_owners_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_narrowed(monkeypatch):
        with staged(tmp_path / "private", private=True) as part, whole(part / "file", private=True) as file:
            file.write(b"a user's")
        with staged(tmp_path / "public"):
            pass
    assert wider(tmp_path / "private") == {}
    assert wider(tmp_path / "public") == {".": "0o777"}, "the umask is 0 here, and decides"
    (tmp_path / "file").write_bytes(b"")
    with whole(tmp_path / "file", private=True):
        pass
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600, "wider before"


@pytest.mark.parametrize("place", ["s3://bucket/run", "file:///tmp/run", Path("gs://bucket")])
def test_a_url_is_no_folder(place: str | Path) -> None:
    refused(r"^\S+: is a URL; name a folder, .* aws s3 sync FOLDER URL$", local_path, place)
    assert local_path("runs/a:b") == Path("runs/a:b")


def test_an_empty_folder_is_taken_a_full_one_refused_and_what_fails_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with staged(out) as part:
        (part / "a").write_text("1")
        assert not any(out.iterdir()) and part.parent == out.parent
    assert (out / "a").read_text() == "1" and out.stat().st_mode & 0o777 == 0o755
    for place, why in ((out, "not an empty"), (out / "a", "not an empty"), (out / "a" / "b", "cannot be written")):
        with pytest.raises(UserError, match=why), staged(place):
            pytest.fail("accepted")
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "deep" / "deeper" / "run") as part:
        (part / "a").write_text("1")
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
