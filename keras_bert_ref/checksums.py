"""The checksum of TFRecord shards and TensorFlow checkpoints."""

import google_crc32c


def masked_crc(data) -> int:
    """Returns the CRC-32C of bytes (or of a flat uint8 array), as TensorFlow's formats store it.

    That is rotated and shifted, so that a checksum of data with checksums in it is as good as any.
    """
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
