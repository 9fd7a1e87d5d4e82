"""Modules that atheris instruments for each target: ours, and parsers."""

WATCHED = {
    "annotations": ("data.coco_json", "data.json_lists", "data.annotations"),
    "checkpoint": (
        "retinanet.training.checkpoint",
        "retinanet.training.train_state",
        "data.annotations",
        "safetensors",
    ),
    "config": (
        "retinanet.config",
        "retinanet.config_sections",
        "retinanet.config_types",
        "retinanet.config_file",
        "ruamel.yaml",
    ),
    "environment": ("launch.ranks", "launch.rendezvous", "launch.limits"),
    "hosts": ("launch.hosts",),
    "image": ("data.decoding", "PIL"),
    "index": ("data.index", "data.annotations", "numpy.lib"),
    "log": ("profiling.onednn_log", "profiling.stats"),
    "mlperf": ("retinanet.mlperf",),
    "openimages": ("data.openimages",),
    "topology": ("launch.topology",),
    "voc": ("data.formats",),
    "weights": (
        "retinanet.training.detector_weights",
        "retinanet.training.weight_files",
        "safetensors",
    ),
    "yolo": ("data.formats", "data.decoding", "common.yaml_text", "ruamel.yaml"),
}
