"""The formats of other programs: how each is read, and how predictions are written in it."""

from typing import NamedTuple

from data.formats.coco import coco_files, read_coco, write_coco
from data.formats.labels import Outputs, Reader, Writer
from data.formats.voc import read_voc, voc_files, write_voc
from data.formats.yolo import read_yolo, write_yolo, yolo_files


class Format(NamedTuple):
    """What `data convert --from` and `predict --labels` know of a format."""

    read: Reader
    outputs: Outputs
    write: Writer


FORMATS = {
    "yolo": Format(read_yolo, yolo_files, write_yolo),
    "voc": Format(read_voc, voc_files, write_voc),
    "coco": Format(read_coco, coco_files, write_coco),
}
