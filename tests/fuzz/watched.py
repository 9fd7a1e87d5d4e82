"""Modules of each target of which atheris sees which lines are reached: ours, and parsers."""

WATCHED = {
    "annotations": (
        "data.coco_json",
        "data.coco_json",
        "data.coco_json",
        "data.annotations",
        "data.annotations",
        "data.annotations",
    ),
    "checkpoint": (
        "retinanet.training.checkpoint",
        "retinanet.training.checkpoint",
        "retinanet.training.distributed",
        "retinanet.training.distributed",
        "data.annotations",
        "safetensors",
    ),
    "config": ("retinanet.config", "retinanet.config_file", "ruamel.yaml"),
    "environment": ("launch.ranks", "launch.rendezvous", "launch.limits"),
    "hosts": ("launch.hosts",),
    "image": ("data.decoding", "PIL"),
    "index": ("data.index", "data.annotations", "numpy.lib"),
    "log": ("profiling.onednn_log", "profiling.stats"),
    "openimages": ("data.openimages",),
    "topology": ("launch.topology",),
}
