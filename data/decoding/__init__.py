"""Image files to RGB arrays, by the decoder of one's choice."""

from data.decoding.decode import decode_image
from data.decoding.decoders import DECODERS, describe_decoder, installed_decoders, resolve_decoder

__all__ = [
    "DECODERS",
    "decode_image",
    "describe_decoder",
    "installed_decoders",
    "resolve_decoder",
]
