"""Reading: annotations, classes, image files, transforms, and the order in which they are read."""

from data.annotations import Annotations
from data.classes import ClassMap
from data.coco_json import read_annotations
from data.dataset import Batch, DetectionDataset, Sample, SampleKey, collate
from data.decoding import decode_image, describe_decoder, resolve_decoder
from data.index_cache import open_annotations
from data.loader import DetectionLoader, evaluation_loader, training_loader
from data.opening import DetectionData, class_map_of, open_data
from data.sampler import EvaluationBatches, TrainingBatches, training_keys
from data.scenes import make_scenes
from data.sources import Split, find_split
from data.transforms import normalize, resize_image

__all__ = [
    "Annotations",
    "Batch",
    "ClassMap",
    "DetectionData",
    "DetectionDataset",
    "DetectionLoader",
    "EvaluationBatches",
    "Sample",
    "SampleKey",
    "Split",
    "TrainingBatches",
    "class_map_of",
    "collate",
    "decode_image",
    "describe_decoder",
    "evaluation_loader",
    "find_split",
    "make_scenes",
    "normalize",
    "open_annotations",
    "open_data",
    "read_annotations",
    "resize_image",
    "resolve_decoder",
    "training_keys",
    "training_loader",
]
