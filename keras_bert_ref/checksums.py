"""The checksum of TFRecord shards and TensorFlow checkpoints."""

import google_crc32c


def masked_crc(data) -> int:
    """Returns the CRC-32C of bytes, rotated and shifted as TensorFlow's formats store it."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
