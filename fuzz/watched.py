"""Modules of each target of which atheris sees which lines are reached: ours, and parsers."""

WATCHED = {
    "annotations": (
        "data.coco_json",
        "data.json_stream",
        "data.columns",
        "data.growing",
        "data.positions",
        "data.text_column",
    ),
    "checkpoint": (
        "retinanet.training.checkpoint",
        "retinanet.training.optimizer_state",
        "retinanet.training.rank_states",
        "retinanet.training.random_states",
        "data.classes",
        "safetensors",
    ),
    "config": ("retinanet.config", "retinanet.config_file", "ruamel.yaml"),
    "environment": ("launch.ranks", "launch.group.meeting", "launch.pinning.slurm_binding"),
    "hosts": ("launch.start.hostfile", "launch.start.hosts"),
    "image": ("data.decoding", "PIL"),
    "index": ("data.index", "data.text_column", "numpy.lib"),
    "log": ("profiling.onednn_log", "profiling.stats.rows"),
    "openimages": ("data.openimages",),
    "topology": ("launch.host",),
}
