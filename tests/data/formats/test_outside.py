"""Data sets from outside: links to anywhere, files that are none, paths of the user's machine."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from PIL import Image

from data.__main__ import main
from data.coco_json import read_annotations
from data.packed import MOST_BYTES
from tests.data.formats.written import voc_object, voc_xml
from tests.data.samples import write_json
from tests.support.commands import RunHere, error_line

SECRET = "root:x:0:0:root:/root:/bin/bash\n"
IMAGES = {"yolo": "images", "voc": "JPEGImages", "coco": "images"}
SPLITS = {"yolo": "train", "voc": "all", "coco": "train"}
Convert = Callable[..., CompletedProcess[str]]


def write_set(folder: Path, name: str, labelled: Sequence[str] = "ab") -> Path:
    """Write a data set with two images, and labels of these or others; return their folder."""
    images = folder / IMAGES[name]
    images.mkdir(parents=True)
    for stem in "ab":
        Image.new("RGB", (64, 48)).save(images / f"{stem}.jpg")
    files = {}
    if name == "yolo":
        files = {f"labels/{stem}.txt": "0 0.5 0.5 0.25 0.5\n" for stem in labelled}
        files["data.yaml"] = "names: [cat]\ntrain: images\n"
    elif name == "voc":
        cat = voc_object("cat", (1, 1, 64, 48))
        files = {
            f"Annotations/{stem}.xml": voc_xml(f"{stem}.jpg", (64, 48), cat) for stem in labelled
        }
    else:
        sizes = {"width": 64, "height": 48}
        box = {"category_id": 1, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0}
        content = {
            "categories": [{"id": 1, "name": "cat"}],
            "images": [{"id": n, "file_name": f"{s}.jpg", **sizes} for n, s in enumerate(labelled)],
            "annotations": [{"id": n, "image_id": n, **box} for n, _ in enumerate(labelled)],
        }
        write_json(folder / "train.json", content)
    for file, text in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    return images


@pytest.fixture
def convert(tmp_path: Path, run_here: RunHere) -> Convert:
    """Return a function that converts `set` to `out`, and copies its images."""

    def run(name: str, *options: str) -> CompletedProcess[str]:
        folder, out = tmp_path / "set", tmp_path / "out"
        arguments = ("--from", name, "--out", out, "--copy-images", *options)
        return run_here(main, "convert", folder, *arguments)

    return run


def copied(tmp_path: Path, name: str) -> list[str]:
    """Return the names of the copied images, which are those of the annotations."""
    folder = tmp_path / "out" / "images" / SPLITS[name]
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.*"))
    annotations = read_annotations(tmp_path / "out" / f"{SPLITS[name]}.json")
    assert names == sorted(annotations.file_names)
    return names


every_format = pytest.mark.parametrize("name", list(IMAGES))


@every_format
def test_links_between_folders_count_each_image_once(
    tmp_path: Path, convert: Convert, name: str
) -> None:
    images = write_set(tmp_path / "set", name)
    (images / "x").symlink_to(".")
    (images / "up").symlink_to("..")
    for folder, other in (("c", "d"), ("d", "c")):
        (images / folder).mkdir()
        (images / folder / other).symlink_to(f"../{other}")
    done = convert(name)
    assert done.returncode == 0 and copied(tmp_path, name) == ["a.jpg", "b.jpg"]
    expected = f"note: left out: folders that a link names again: 4, first {images}/c/d\n"
    assert expected in done.stdout


@every_format
@pytest.mark.parametrize("kind", ["picture", "pipe", "folder"])
def test_nothing_of_the_users_machine_is_copied_unasked(
    tmp_path: Path, convert: Convert, name: str, kind: str
) -> None:
    """Without labels, as YOLO takes images too, and with them, which VOC and COCO need."""
    images = write_set(tmp_path / "set", name, labelled="ab" if name == "yolo" else "abc")
    secret = tmp_path / "secret"
    if kind == "picture":
        Image.new("RGB", (64, 48)).save(secret, format="JPEG")
    elif kind == "folder":
        secret.mkdir()
        Image.new("RGB", (64, 48)).save(secret / "c.jpg")
    if kind == "pipe":
        os.mkfifo(images / "c.jpg")
    elif kind == "folder":
        (images / "more").symlink_to(secret)
    else:
        (images / "c.jpg").symlink_to(secret)
    done = convert(name)
    if name != "yolo":
        line = error_line(done)
        assert "skip with --skip-missing-images" in line
        # COCO's name has no folder `more`.
        assert ("--allow-outside" in line) is (
            kind != "pipe" and (name, kind) != ("coco", "folder")
        )
        done = convert(name, "--skip-missing-images")
    assert done.returncode == 0, done.stderr
    assert copied(tmp_path, name) == ["a.jpg", "b.jpg"]
    what = "FIFOs, devices" if kind == "pipe" else "paths that lead outside of the data set"
    assert f"note: left out: {what}" in done.stdout


@every_format
def test_links_to_pictures_elsewhere_are_copied_with_the_users_word(
    tmp_path: Path, convert: Convert, name: str
) -> None:
    images = write_set(tmp_path / "set", name, labelled="abc")
    elsewhere = tmp_path / "scratch" / "c.jpg"
    elsewhere.parent.mkdir()
    Image.new("RGB", (64, 48)).save(elsewhere)
    (images / "c.jpg").symlink_to(elsewhere)
    done = convert(name, "--allow-outside")
    assert done.returncode == 0 and copied(tmp_path, name) == ["a.jpg", "b.jpg", "c.jpg"]
    copy = tmp_path / "out" / "images" / SPLITS[name] / "c.jpg"
    assert copy.read_bytes() == elsewhere.read_bytes() and not copy.is_symlink()


@pytest.mark.parametrize("name", ["voc", "coco"])
def test_files_that_are_no_images_are_not_copied(
    tmp_path: Path, convert: Convert, name: str
) -> None:
    """YOLO's reader, which opens each image for its size, refuses them."""
    images = write_set(tmp_path / "set", name, labelled="abc")
    (tmp_path / "secret").write_text(SECRET)
    (images / "c.jpg").symlink_to(tmp_path / "secret")
    done = convert(name, "--allow-outside")
    assert done.returncode == 0 and copied(tmp_path, name) == ["a.jpg", "b.jpg"]
    note = f"note: files that are not images (left out): 1, first {images}/c.jpg: not an image in"
    assert note in done.stdout
    for stem in "ab":
        (images / f"{stem}.jpg").write_text(SECRET)
    assert error_line(convert(name, "--allow-outside", "--overwrite")).endswith(
        "; no image can be copied"
    )


@every_format
def test_file_larger_than_any_image_is_refused(tmp_path: Path, convert: Convert, name: str) -> None:
    image = write_set(tmp_path / "set", name) / "b.jpg"
    os.truncate(image, MOST_BYTES + 1)  # the rest is a hole: it takes no room
    line = error_line(convert(name))
    assert f"{image}: cannot be read: it is larger than 1,500,000,000 bytes" in line


@pytest.mark.parametrize("entry", ["/", "../../..", "..", "/etc", "secret.txt", "../other/images"])
def test_paths_of_a_description_stay_in_its_folder(
    tmp_path: Path, convert: Convert, entry: str
) -> None:
    write_set(tmp_path / "set", "yolo")
    write_set(tmp_path / "other", "yolo")
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "set" / "secret.txt").symlink_to(tmp_path / "secret")
    description = tmp_path / "set" / "data.yaml"
    for text in (f"train: {entry}", f"train: images\nval: [{entry}]"):
        description.write_text(f"names: [cat]\n{text}\n")
        line = error_line(convert("yolo"))
        assert line.startswith(f"error: {description}: ") and "root:" not in line
        assert f"leads outside of {tmp_path}/set; give --allow-outside if you trust" in line


def test_folder_elsewhere_is_taken_with_the_users_word(tmp_path: Path, convert: Convert) -> None:
    """Not the folder of this name beside the file either: it is another one."""
    write_set(tmp_path / "set", "yolo")
    write_set(tmp_path / "other", "yolo").joinpath("b.jpg").unlink()
    description = tmp_path / "set" / "data.yaml"
    description.write_text(f"names: [cat]\npath: {tmp_path}/other\ntrain: images\n")
    assert f"train: {tmp_path}/other/images leads outside" in error_line(convert("yolo"))
    done = convert("yolo", "--allow-outside")
    assert done.returncode == 0 and copied(tmp_path, "yolo") == ["a.jpg"]
    # Roboflow's path is meant inside, unless it is given as it is written.
    description.write_text("names: [cat]\ntrain: ../images\n")
    write_set(tmp_path / "set" / "below", "yolo").joinpath("b.jpg").unlink()
    (tmp_path / "set" / "below" / "images").rename(tmp_path / "images")
    assert convert("yolo", "--overwrite").returncode == 0
    assert copied(tmp_path, "yolo") == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize("options", [[], ["--allow-outside"]])
def test_lines_of_files_outside_are_not_shown(
    tmp_path: Path, convert: Convert, options: list[str]
) -> None:
    """Such as `train: /etc/passwd`: the file may be no list, and errors are posted in public."""
    write_set(tmp_path / "set", "yolo")
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    description = tmp_path / "set" / "data.yaml"
    description.write_text(f"names: [cat]\ntrain: {secret}\n")
    line = error_line(convert("yolo", *options))
    assert str(secret) in line and "root:" not in line
    assert f"{secret}: line 1: the image does not exist" in line if options else True
    write_set(tmp_path / "set" / "voc", "voc")
    lists = tmp_path / "set" / "voc" / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").symlink_to(secret)
    (tmp_path / "set" / "voc").rename(tmp_path / "voc")
    (tmp_path / "set").rename(tmp_path / "yolo")
    (tmp_path / "voc").rename(tmp_path / "set")
    line = error_line(convert("voc", *options))
    assert "train.txt: l" in line and "root:" not in line


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("yolo", "data.yaml"),
        ("yolo", "labels/a.txt"),
        ("voc", "Annotations/a.xml"),
        ("voc", "labelmap.txt"),
        ("coco", "train.json"),
    ],
)
def test_labels_and_names_stay_in_the_folder(
    tmp_path: Path, convert: Convert, name: str, file: str
) -> None:
    write_set(tmp_path / "set", name)
    place = tmp_path / "set" / file
    place.unlink(missing_ok=True)
    (tmp_path / "secret").write_text(SECRET)
    place.symlink_to(tmp_path / "secret")
    done = convert(name)
    if file == "Annotations/a.xml":  # one XML file less
        assert done.returncode == 0 and "note: left out: paths that lead outside" in done.stdout
        return
    assert "--allow-outside" in (line := error_line(done)) and "root:" not in line


@pytest.mark.parametrize(("name", "folder"), [("voc", "Annotations"), *IMAGES.items()])
def test_folder_that_is_a_link_needs_the_users_word(
    tmp_path: Path, convert: Convert, name: str, folder: str
) -> None:
    """As on clusters, where the images are on a disk of their own."""
    write_set(tmp_path / "set", name)
    (tmp_path / "set" / folder).rename(tmp_path / "scratch")
    (tmp_path / "set" / folder).symlink_to(tmp_path / "scratch")
    assert "--allow-outside" in error_line(convert(name))
    done = convert(name, "--allow-outside")
    assert done.returncode == 0 and copied(tmp_path, name) == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize("name", ["voc", "coco"])
def test_given_folder_of_images_may_be_a_link(tmp_path: Path, convert: Convert, name: str) -> None:
    images = write_set(tmp_path / "set", name)
    images.rename(tmp_path / "scratch")
    images.symlink_to(tmp_path / "scratch")
    assert convert(name, "--images", str(images)).returncode == 0
    assert copied(tmp_path, name) == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize("text", ["train: {}", "train: list.txt"])
def test_names_that_no_file_can_have_are_refused(
    tmp_path: Path, convert: Convert, text: str
) -> None:
    write_set(tmp_path / "set", "yolo")
    (tmp_path / "set" / "list.txt").write_text(f"{'n' * 300}.jpg\n")
    (tmp_path / "set" / "data.yaml").write_text(f"names: [cat]\n{text.format('n' * 300)}\n")
    assert "does not exist" in error_line(convert("yolo"))


def test_names_in_coco_that_no_file_can_have_are_refused(tmp_path: Path, convert: Convert) -> None:
    write_set(tmp_path / "set", "coco", labelled=["a", "n" * 300])
    assert "does not exist" in error_line(convert("coco"))


def test_coco_names_may_lead_through_a_link_in_the_folder(tmp_path: Path, convert: Convert) -> None:
    images = write_set(tmp_path / "set", "coco", labelled=["x/a", "b"])
    (images / "x").symlink_to(".")
    assert convert("coco").returncode == 0
    assert copied(tmp_path, "coco") == ["b.jpg", "x/a.jpg"]
