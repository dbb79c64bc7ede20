"""Pretrained weights in and out, in the formats they are published in."""
