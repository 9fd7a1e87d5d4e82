"""Download, split, cut, index, verify, show and benchmark data sets."""

import sys
from functools import partial

from common.cli import run_command, run_command_group

COMMANDS = {
    "download": (
        "data.download.command:add_download",
        "download COCO or OpenImages: annotations and images",
    ),
    "scenes": (
        "data.synthetic:add_scenes",
        "create synthetic data: drawn images with bounding boxes",
    ),
    "split": ("data.split:add_split", "split annotations into training and validation"),
    "tile": ("data.tile:add_tile", "cut large images into tiles, for small objects"),
    "pack": ("data.pack:add_pack", "pack images into tars, for disks that are slow to open files"),
    "convert": (
        "data.convert:add_convert",
        "convert labels of YOLO, Pascal VOC, COCO or OpenImages, or make an index",
    ),
    "verify": ("retinanet.verify_command:add_verify", "check images and boxes before a long run"),
    "show": (
        "retinanet.show_command:add_show",
        "draw images as the network sees them, augmentation and boxes included",
    ),
    "bench": (
        "profiling.bench.data_bench:add_data_bench",
        "measure images per second of each decoder and of the whole pipeline",
    ),
}

main = partial(run_command_group, "data", __doc__, COMMANDS)

if __name__ == "__main__":
    sys.exit(run_command(main))
