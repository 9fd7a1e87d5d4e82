"""Which image files are read."""

import json
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from common.errors import InputError
from profiling.bench.data_bench import Source, find_source, photos_in, read_list, write_list


def folder_of(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


def source_of(scratch: Path, *overrides: str, limit: int = 3, **options: object) -> Source:
    given: dict[str, object] = {"images": None, "config": None, "image_size": None, **options}
    quiet = Console(quiet=True)
    return find_source(scratch, overrides=overrides, limit=limit, console=quiet, **given)  # type: ignore[arg-type]


def test_a_limit_takes_images_from_the_whole_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos", *(f"{number:02}.png" for number in range(20)))
    names = [photo.name for photo in photos_in(folder, limit=4)]
    assert names == ["00.png", "05.png", "10.png", "15.png"]
    assert len(photos_in(folder, limit=100)) == 20


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos", "a.JPG", "b.webp")
    (folder / "notes.txt").write_text("no image")
    assert [photo.name for photo in photos_in(folder, limit=9)] == ["a.JPG", "b.webp"]


def test_a_folder_that_is_missing_or_without_images_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", folder_of(tmp_path / "empty")):
        with pytest.raises(InputError, match="--images: ") as caught:
            photos_in(folder, limit=1)
        assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_the_list_for_other_processes_holds_any_name(tmp_path: Path) -> None:
    photos = [Path("/photos/a b\nc.jpg"), Path("/photos/é.jpg")]
    write_list(photos, tmp_path / "list.json")
    assert read_list(str(tmp_path / "list.json")) == photos


def test_a_configuration_names_the_training_images_and_the_size(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "photos", "a.png")
    annotations = tmp_path / "train.json"
    annotations.write_text(json.dumps({}))
    overrides = (f"data.train_images={images}", f"data.train_annotations={annotations}")
    source = source_of(tmp_path, *overrides, "data.image_size=320", config="coco.yaml")
    assert source.photos == [images.resolve() / "a.png"]
    assert source.image_size == 320 and not source.is_synthetic
    other = source_of(tmp_path, *overrides, config="coco.yaml", image_size=64)
    assert other.image_size == 64


def test_without_photos_scenes_are_drawn(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    assert source.is_synthetic and source.image_size == 800
    assert len(source.photos) == 3 and all(photo.is_file() for photo in source.photos)
    demo = source_of(tmp_path, config="demo.yaml")
    assert demo.is_synthetic and demo.image_size < 800
